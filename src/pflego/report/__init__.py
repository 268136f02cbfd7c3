"""What a person looks at: one HTML file that opens offline."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from pflego.cost import Energy
from pflego.evaluation import worst_tenth
from pflego.files import make_folder, write_atomically

if TYPE_CHECKING:
    from plotly.graph_objects import Scatter

    from pflego.run import Run

_PAGE = Path(__file__).with_name("page.html")


def write_report(run: Run, path: Path) -> Path:
    """Write a run's page: its figures, curves, clients and settings."""
    try:
        from plotly.graph_objects import Scatter
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("for a report: pip install 'pflego[report]'") from error
    task = run.federation.task
    unit, axis = (100, "accuracy, %") if task.metric == "accuracy" else (1, task.metric)
    rows = run.evaluate()
    figures = [row[task.metric] for row in rows]  # type: ignore[literal-required]
    losses = Scatter(x=[r["round"] for r in run.history], y=[r["loss"] for r in run.history], name="loss")
    curves = []
    for protocol in ("participants", "everyone"):
        key = f"{protocol}_{task.metric}"
        known = [(row["round"], value * unit) for row in run.history if (value := row.get(key)) is not None]
        curves.append(
            Scatter(x=[t for t, _ in known], y=[v for _, v in known], name=protocol, mode="lines+markers")
        )
    clients = Scatter(
        x=[str(row["id"]) for row in rows],
        y=[None if figure is None else figure * unit for figure in figures],
        name="client",
        mode="markers",
    )
    page = Template(_PAGE.read_text()).substitute(
        title=escape(f"{run.algorithm.name} on {run.settings.get('data', 'a federation')}"),
        cards=_cards(run, figures, unit),
        charts="\n".join(
            [
                _chart("Training loss of the participants", "round", "loss", [losses]),
                _chart(f"Test {task.metric}, under both protocols", "round", axis, curves),
                _chart(f"Test {task.metric} of every client", "client", axis, [clients]),
            ]
        ),
        settings="".join(
            f"<tr><th>{escape(str(key))}</th><td>{escape(str(value))}</td></tr>"
            for key, value in _flat(run.settings).items()
        ),
        plotly=get_plotlyjs(),
    )
    make_folder(path.parent)
    write_atomically(path, page.encode())
    return path


def _cards(run: Run, figures: Sequence[float | None], unit: float) -> str:
    """The numbers to see first."""
    task, last, cost = run.federation.task, run.history[-1], run.cost()
    worst = worst_tenth(figures, higher_is_better=task.higher_is_better)
    bytes_up = sum(row["bytes_up"] or 0 for row in run.history)
    seconds = sum(row["seconds"] or 0 for row in run.history)
    cards = [
        (f"{task.metric}, all clients", _number(last.get(f"everyone_{task.metric}"), unit)),
        (f"{task.metric}, worst tenth", _number(worst, unit)),
        ("rounds", str(len(run.history))),
        ("forward and backward passes a round", f"{cost.forward_passes} + {cost.backward_passes}"),
        ("arithmetic a client and round", f"{cost.flops / 1e9:.3g} GFLOP"),
        ("memory a client needs for it", f"{cost.memory / 1e6:.3g} MB"),
        (f"energy a client and round, if {Energy()}", f"{cost.joules():.2g} J"),
        ("sent by clients", f"{bytes_up / 1e6:.1f} MB"),
        ("work of clients and server", f"{seconds:.1f} s"),
    ]
    return "".join(
        f"<div class='card'><b>{value}</b><span>{escape(what)}</span></div>" for what, value in cards
    )


def _number(figure: float | None, unit: float) -> str:
    return "–" if figure is None else f"{figure * unit:.2f}{' %' if unit == 100 else ''}"


def _chart(title: str, x: str, y: str, traces: Sequence[Scatter]) -> str:
    from plotly.graph_objects import Figure

    figure = Figure(data=list(traces))
    figure.update_layout(
        height=340,
        margin={"l": 60, "r": 10, "t": 10, "b": 50},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": "#7a828c"},
        legend={"orientation": "h", "y": 1.1},
        xaxis={"title": x, "gridcolor": "rgba(128,128,128,0.2)"},
        yaxis={"title": y, "gridcolor": "rgba(128,128,128,0.2)"},
    )
    drawing = figure.to_html(
        full_html=False, include_plotlyjs=False, config={"responsive": True, "displayModeBar": False}
    )
    return f"<section><h2>{escape(title)}</h2>{drawing}</section>"


def _flat(settings: dict[str, object]) -> dict[str, object]:
    """Nested tables as table.key."""
    flat: dict[str, object] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{inner}": v for inner, v in value.items()}
        else:
            flat[key] = value
    return flat
