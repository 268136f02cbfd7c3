"""pflego evaluate: how good everybody's models are, on their own test data or on new samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pflego.cli import rows, whose
from pflego.errors import UserError

if TYPE_CHECKING:
    from pflego.runs.run import Run


def evaluate(
    run: whose.Folder,
    data: Annotated[
        Path | None,
        typer.Option(help="Labelled samples, like the training data. \\[each client's own test data]"),
    ] = None,
    client: Annotated[
        str | None, typer.Option(help="Whose model alone. \\[everybody's, each on its own samples]")
    ] = None,
    adapt: Annotated[
        bool,
        typer.Option("--adapt", help="Clients first take their local steps against the present backbone."),
    ] = False,
    knn: Annotated[
        bool,
        typer.Option(
            "--knn",
            help="Mix every model with the nearest of its client's own training samples, as much as the client "
            "finds best on some of them.",
        ),
    ] = False,
    out: rows.OutFile = None,
    trust: whose.Trust = False,
) -> None:
    """Evaluate the clients' models: one line per client, all of them together, the worst tenth.

    [bold]pflego evaluate runs/a[/bold] tries every model on its client's test data.

    [bold]pflego evaluate runs/a --data new.csv --client 3[/bold] tries one on new samples.
    """
    chosen = rows.choose(None, out)

    from rich.table import Table

    from pflego.after import neighbours
    from pflego.after.prediction import of_clients
    from pflego.cli.console import Console
    from pflego.cli.run import percent
    from pflego.learning.evaluation import pooled, table, worst_tenth
    from pflego.settings.open_run import open_run

    opened = open_run(run, trust=trust)
    if data is not None:
        opened = _on(opened, data, client, run)
    elif client is not None:
        opened = of_clients(opened, whose.clients_called([client], opened.federation, run))
    task = opened.federation.task
    scores = neighbours.scores(opened, adapt=adapt) if knn else opened.scores(adapt=adapt)
    lines = table(opened.federation.ids, scores, task)
    figures = [score.value(task) for score in scores]
    together = pooled(scores, task)
    worst = worst_tenth(figures, higher_is_better=task.higher_is_better)
    if out is not None:
        whole = {"clients": lines, task.metric: together, "worst_tenth": worst}
        columns = ["id", "samples", "loss", task.metric]
        rows.put(rows.as_csv(columns, lines) if chosen == "csv" else rows.as_json(whole), out)
    shown = Table()
    shown.add_column("client", no_wrap=True)
    for heading in ("samples", "loss", task.metric):
        shown.add_column(heading, justify="right")
    for line, figure in zip(lines, figures, strict=True):
        loss = line["loss"]
        shown.add_row(
            str(line["id"]),
            str(line["samples"]),
            "–" if loss is None else f"{loss:.4f}",
            percent(figure, task.metric),
        )
    if len(lines) > 1:
        shown.add_section()
        shown.add_row(
            "all together", str(sum(score.samples for score in scores)), "", percent(together, task.metric)
        )
        shown.add_row("worst tenth", "", "", percent(worst, task.metric))
    Console().print(shown)


def _on(run: Run, data: Path, client: str | None, folder: Path) -> Run:
    from pflego.after.prediction import judged_on
    from pflego.data.schema import schema_of

    samples = schema_of(run.federation).read(data)
    if samples.y is None:
        raise UserError(
            f"{data} has no labels to compare with: pflego predict says what the model makes of it"
        )
    return judged_on(run, samples, whose.owners(samples, data, client, run.federation, folder))
