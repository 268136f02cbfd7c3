"""What leaves a site, seen before it joins: a round is really done on its data, and nothing is sent or kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pflego.deploy.flower.desk import Desk, rehearse
from pflego.deploy.flower.facts import Common
from pflego.deploy.flower.keep import StateFile
from pflego.deploy.flower.messages import pack, unpack_facts
from pflego.deploy.flower.secure.content import CLIPPED, summable
from pflego.deploy.flower.secure.settings import SecureSum
from pflego.deploy.folder import TEMPLATE
from pflego.deploy.reading import read
from pflego.exchange.metrics import How
from pflego.exchange.privacy import ClientPrivacy
from pflego.federation.roster import Client
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
    metrics: list[str]  # the numbers beside it, by name
    privacy: ClientPrivacy | None  # under which nothing but that is said of the data
    received: list[Line]
    kept: list[Line]
    file: Path  # where it is kept
    data: list[Line]
    outputs_unknown: bool  # whether sizes grow with the classes of the others
    altered: list[str]  # files of the app that are not as pflego wrote them
    secure: SecureSum = SecureSum()  # whether the server sees any of it but in sums

    @property
    def bytes(self) -> int:
        """Of the weights sent in a round."""
        return sum(line.bytes for line in self.message)


def inspect(app: Path, node_config: str) -> Inspection:
    """Do what a site with this node config would do in the first round of an app."""
    config, site = read(app, node_config)
    client, schema = site.data_and_schema()
    assignment = site.at_home(config.assignment)
    facts = assignment.facts(client, schema)
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
    desk = Desk.of(assignment, client, common, schema, device=site.device)
    desk.model.check(client.x_train[:8])
    sent = unpack_facts(pack({}, facts.said)).facts
    played, secure = rehearse(desk), config.deployment.secure
    measured = {name: metric.how for exchange in played for name, metric in exchange.metrics.items()}
    return Inspection(
        once={name: sent[name] for name in facts.said},
        message=[line for exchange in played for line in _lines(exchange.sent)],
        metrics=_figures(measured, private=assignment.privacy is not None, secure=secure),
        privacy=assignment.privacy,
        received=[line for exchange in played for line in _lines(exchange.received)],
        kept=_lines(played[-1].state),
        file=StateFile(site.state, "<run>", client.id).path,
        data=_lines(_data(client)),
        outputs_unknown=bool(facts.classes) and any(name.startswith("head") for name in desk.shared()),
        altered=_altered(app),
        secure=secure,
    )


def _figures(measured: Mapping[str, How], *, private: bool, secure: SecureSum) -> list[str]:
    """Name the numbers that leave a site beside weights."""
    if private:
        return []
    return [*summable(dict(measured)), CLIPPED] if secure.on else ["seconds", *measured]


def _lines(weights: Weights) -> list[Line]:
    return [
        Line(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.nbytes)
        for name, tensor in weights.items()
    ]


def _data(client: Client) -> Weights:
    weights = {} if client.weights is None else {"training weights": client.weights}
    return {
        "training inputs": client.x_train,
        "training labels": client.y_train,
        **weights,
        "test inputs": client.x_test,
        "test labels": client.y_test,
    }


def _altered(app: Path) -> list[str]:
    """List the code files of the app that are not the template's: they run at the site too."""
    ours = {path.relative_to(TEMPLATE): path.read_bytes() for path in TEMPLATE.rglob("*.py")}
    theirs = {path.relative_to(app): path.read_bytes() for path in app.rglob("*.py")}
    return sorted(str(path) for path, content in theirs.items() if ours.get(path) != content)
