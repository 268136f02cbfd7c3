"""New samples: what personal models say of them in the words of their data, and how good that is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pflego.data.schema import Samples, Schema
from pflego.engines.local import LocalEngine
from pflego.errors import UserError
from pflego.federation.roster import Client, ClientId, Federation
from pflego.learning.evaluation import Score
from pflego.learning.model import PersonalModel
from pflego.learning.task import Classification, Regression, Task
from pflego.runs.run import Run

Answer: TypeAlias = str | float | list[float] | None

_AT_A_TIME = 1024  # samples


@dataclass(frozen=True)
class Prediction:
    """One sample's."""

    row: str | int  # its number in the file, or the name of its own file
    client: ClientId  # whose model it is by
    answer: (
        Answer  # a class's name, None for an output of no class; in regression a number, or one per output
    )
    probabilities: dict[str, float]  # of every class the model knows; none in regression


@dataclass(frozen=True)
class Predictions:
    """A file's, in its order, and how good they are."""

    rows: list[Prediction]
    classes: list[str]  # that any of the models knows, in the order of their ids
    task: Task
    score: Score | None  # None: the file has no labels


def predict(
    samples: Samples,
    schema: Schema,
    owners: Sequence[ClientId],
    model_of: Callable[[ClientId], PersonalModel],
) -> Predictions:
    """Predict every sample by the model of its owner."""
    task = Classification() if schema.task == "classification" else Regression(unit=schema.label_scale)
    x, y = _tensors(samples)
    rows: dict[int, Prediction] = {}
    known: set[int] = set()
    score = 0.0
    for owner, own in _by_owner(owners).items():
        model = model_of(owner)
        classes = model.get_buffer("classes")
        known.update(classes.tolist())
        for places in torch.split(own, _AT_A_TIME):
            outputs = _outputs(model, x[places])
            if y is not None:
                targets = task.targets(y[places], classes, outputs.dtype)
                targets = functional.pad(targets, (0, outputs.shape[1] - targets.shape[1]))
                score += float(task.scores(outputs, targets).sum())
            said = _classes(outputs, classes, schema) if len(classes) else _numbers(outputs, schema)
            for place, (answer, probabilities) in zip(places.tolist(), said, strict=True):
                rows[place] = Prediction(samples.rows[place], owner, answer, probabilities)
    return Predictions(
        [rows[place] for place in range(len(rows))],
        [schema.class_name(client_id) for client_id in sorted(known)],
        task,
        None if y is None else Score(len(rows), None, score),
    )


def judged_on(run: Run, samples: Samples, owners: Sequence[ClientId]) -> Run:
    """Give a run of the owners alone, who have these samples to be tested on instead of their own."""
    x, y = _tensors(samples)
    if y is None:
        raise UserError("samples without labels show nothing of how good a model is")
    tests = _by_owner(owners)

    def load(client_id: ClientId) -> Client:
        client = run.federation.client(client_id)
        own = tests[client_id]
        return Client(client_id, client.x_train, client.y_train, x[own], y[own], weights=client.weights)

    return of_clients(run, list(tests), load)


def of_clients(run: Run, ids: Sequence[ClientId], load: Callable[[ClientId], Client] | None = None) -> Run:
    """Give a run of some of its clients alone, each with the model it has."""
    whole = run.federation
    places = [whole.position(client_id) for client_id in ids]
    federation = Federation.lazy(
        ids,
        load or whole.client,
        sizes=whole.sizes[places],
        masses=whole.masses[places] if whole.weighted else None,
        classes=whole.classes,
        most_classes=whole.most_classes,
        source=whole.source,
        schema=whole.schema,
    )
    problems = replace(run.problems, federation=federation)
    return replace(run, problems=problems, engine=LocalEngine(problems, run.algorithm, run.states))


def _tensors(samples: Samples) -> tuple[Tensor, Tensor | None]:
    y = samples.y
    return torch.as_tensor(np.asarray(samples.x)), None if y is None else torch.as_tensor(np.asarray(y))


def _by_owner(owners: Sequence[ClientId]) -> dict[ClientId, Tensor]:
    """Map client to the positions of its samples."""
    places: dict[ClientId, list[int]] = {}
    for place, owner in enumerate(owners):
        places.setdefault(owner, []).append(place)
    return {owner: torch.tensor(own) for owner, own in places.items()}


@torch.no_grad()
def _outputs(model: PersonalModel, x: Tensor) -> Tensor:
    outputs: Tensor = model(x)
    return outputs.double()


def _classes(outputs: Tensor, classes: Tensor, schema: Schema) -> list[tuple[Answer, dict[str, float]]]:
    """Return the class of the largest output and probabilities; what they lack to one is that of no class."""
    names = [schema.class_name(client_id) for client_id in classes.tolist()]
    best, probabilities = outputs.argmax(dim=1).tolist(), torch.softmax(outputs, dim=1).tolist()
    return [
        (names[place] if place < len(names) else None, dict(zip(names, own, strict=False)))
        for place, own in zip(best, probabilities, strict=True)
    ]


def _numbers(outputs: Tensor, schema: Schema) -> list[tuple[Answer, dict[str, float]]]:
    numbers: list[list[float]] = schema.in_units(outputs.numpy()).tolist()
    return [(own[0] if len(own) == 1 else own, {}) for own in numbers]
