"""What leaves a site, seen before it joins: a round is really done on its data, and nothing is sent or kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pflego.algorithms.base import Round
from pflego.deploy.folder import TEMPLATE
from pflego.deploy.reading import read
from pflego.engines.flower.client import Desk
from pflego.engines.flower.facts import Common, Facts
from pflego.engines.flower.keep import StateFile
from pflego.federation import Client
from pflego.weights import Weights


@dataclass(frozen=True)
class Line:
    """A tensor: its name, type, shape and bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class Inspection:
    """What leaves a site, what comes to it, and what never leaves."""

    once: dict[str, object]  # when the server asks who is there
    message: list[Line]  # in every round that it takes part in
    figures: dict[str, float]  # beside the message
    received: list[Line]
    kept: list[Line]
    file: Path  # where it is kept
    data: list[Line]
    outputs_unknown: bool  # whether sizes grow with the classes of the others
    altered: list[str]  # files of the app that are not as pflego wrote them

    @property
    def bytes(self) -> int:
        """Of the weights sent in a round."""
        return sum(line.bytes for line in self.message)


def inspect(app: Path, node_config: str) -> Inspection:
    """Do what a site with this node config would do in the first round of an app."""
    plan, site = read(app, node_config)
    client, schema = site.data_and_schema()
    facts = Facts.of(client, schema)
    common = Common(
        "inspection",
        clients=1,
        samples=facts.samples,
        task=facts.task,
        classes=facts.classes,
        most_classes=len(facts.classes),
        outputs=facts.outputs,
        schema=facts.schema,
    )
    desk = Desk.of(plan, site, client, common, schema)
    desk.model.check(client.x_train[:8])
    shared = desk.shared()
    round = Round(1, clients=1, expected=1, samples=facts.samples, selected=1, seed=plan.seed)
    content, outcome = desk.work(round, shared, desk.first())
    return Inspection(
        once=dict(facts.pack()),
        message=[
            Line(name, array.dtype, tuple(array.shape), len(array.data))
            for name, array in content.array_records["message"].items()
        ],
        figures={name: float(str(value)) for name, value in content.metric_records["figures"].items()},
        received=_lines(shared),
        kept=_lines(outcome.state),
        file=StateFile(site.state, "<run>", client.id).path,
        data=_lines(_data(client)),
        outputs_unknown=bool(facts.classes) and any(name.startswith("head") for name in shared),
        altered=_altered(app),
    )


def _lines(weights: Weights) -> list[Line]:
    return [
        Line(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.nbytes)
        for name, tensor in weights.items()
    ]


def _data(client: Client) -> Weights:
    return {
        "training inputs": client.x_train,
        "training labels": client.y_train,
        "test inputs": client.x_test,
        "test labels": client.y_test,
    }


def _altered(app: Path) -> list[str]:
    """The code of the app that is not the template's: it runs at the site too."""
    ours = {path.relative_to(TEMPLATE): path.read_bytes() for path in TEMPLATE.rglob("*.py")}
    theirs = {path.relative_to(app): path.read_bytes() for path in app.rglob("*.py")}
    return sorted(str(path) for path, content in theirs.items() if ours.get(path) != content)
