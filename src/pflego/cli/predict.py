"""pflego predict: a client's model on new samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pflego.cli import rows, whose
from pflego.errors import SettingError

if TYPE_CHECKING:
    from pflego.after.prediction import Prediction, Predictions

DataFile = Annotated[
    Path,
    typer.Option("--data", help="New samples: a file, or a folder of images, like the training data."),
]


def predict(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="A run, or a model from pflego export.", show_default=False),
    ],
    data: DataFile,
    client: Annotated[
        str | None, typer.Option(help="Whose model. \\[each sample's own client, if the file names it]")
    ] = None,
    out: rows.OutFile = None,
    file_format: rows.FormatName = None,
    adapt: Annotated[
        bool,
        typer.Option("--adapt", help="First take the client's local steps against the present backbone."),
    ] = False,
    trust: whose.Trust = False,
) -> None:
    """Predict new samples: the class and a probability for every class, or numbers in a regression.

    [bold]pflego predict runs/a --client 3 --data new.csv --out predictions.csv[/bold]

    Where the file has the column of clients, every sample is predicted by its own client's model. Where it has labels
    too, the accuracy is said at the end.
    """
    chosen = rows.choose(file_format, out)

    from pflego.after.export import is_exported

    done = (
        _exported(folder, data, client, adapt, trust)
        if is_exported(folder)
        else _run(folder, data, client, adapt, trust)
    )
    rows.put(_csv(done) if chosen == "csv" else rows.as_json([_nested(one) for one in done.rows]), out)
    if done.score is not None:
        from pflego.cli.run import percent

        metric = done.task.metric
        figure = percent(done.score.value(done.task), metric)
        typer.echo(f"{metric} {figure}, {done.score.samples} samples", err=True)


def _run(folder: Path, data: Path, client: str | None, adapt: bool, trust: bool) -> Predictions:
    from pflego.after import prediction
    from pflego.data.schema import schema_of
    from pflego.settings.open_run import open_run

    run = open_run(folder, trust=trust)
    schema = schema_of(run.federation)
    samples = schema.read(data)
    owners = whose.owners(samples, data, client, run.federation, folder)
    return prediction.predict(
        samples, schema, owners, lambda client_id: run.personal_model(client_id, adapt=adapt)
    )


def _exported(folder: Path, data: Path, client: str | None, adapt: bool, trust: bool) -> Predictions:
    from pflego.after import prediction
    from pflego.after.export import load_model, read_card

    card = read_card(folder)
    if adapt:
        raise SettingError(
            "--adapt needs the client's training data, which an exported model has not: name the run"
        )
    samples = card.schema.read(data)
    mine = str(card.client)
    named = set(map(str, samples.clients or [])) if client is None else {client}
    if others := sorted(named - {mine}):
        raise SettingError(
            f"{folder} is the model of client {mine!r}, not of {others[0]!r}; "
            f"to use it for all samples: --client {mine}"
        )
    model = load_model(folder, trust=trust)
    return prediction.predict(samples, card.schema, [card.client] * len(samples.rows), lambda _: model)


def _csv(done: Predictions) -> str:
    outputs = max((len(one.answer) for one in done.rows if isinstance(one.answer, list)), default=1)
    answers = ["prediction"] if outputs == 1 else [f"prediction_{k}" for k in range(outputs)]
    columns = ["row", "client", *answers, *(f"probability_{name}" for name in done.classes)]
    return rows.as_csv(columns, [_flat(one, answers) for one in done.rows])


def _flat(one: Prediction, answers: list[str]) -> dict[str, object]:
    values = one.answer if isinstance(one.answer, list) else [one.answer]
    return {
        "row": one.row,
        "client": one.client,
        **{name: _short(value) for name, value in zip(answers, values, strict=True)},
        **{f"probability_{name}": _short(p) for name, p in one.probabilities.items()},
    }


def _nested(one: Prediction) -> dict[str, object]:
    answer = [_short(value) for value in one.answer] if isinstance(one.answer, list) else _short(one.answer)
    nested: dict[str, object] = {"row": one.row, "client": one.client, "prediction": answer}
    if one.probabilities:
        nested["probabilities"] = {name: _short(p) for name, p in one.probabilities.items()}
    return nested


def _short(value: str | float | None) -> str | float | None:
    """Round a number to the seven digits a model computes with."""
    return float(f"{value:.7g}") if isinstance(value, float) else value
