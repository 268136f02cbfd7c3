"""What the server was told in a Flower app's run config: settings but for the data, and those of the deployment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pflego import models
from pflego.algorithms.base import Algorithm
from pflego.declaration import (
    Declared,
    Limits,
    NotNegative,
    Positive,
    Whole,
    arguments,
    check_fields,
    declared,
)
from pflego.deploy.flower.facts import classes_in
from pflego.deploy.flower.secure.settings import SecureSum
from pflego.deploy.flower.site_config import Assignment, as_python
from pflego.deploy.gateway.settings import Gateway
from pflego.errors import SettingError
from pflego.exchange.aggregation import aggregation_of
from pflego.exchange.objective import QFair, objective_of
from pflego.exchange.privacy import privacy_of
from pflego.federation.participation import Everyone, participation_of
from pflego.federation.population import Population, population_of
from pflego.federation.roster import ClientId
from pflego.learning.model import Model
from pflego.settings.experiment import build_model, seed_of
from pflego.settings.tables import Settings
from pflego.training.train import train


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """How the server deals with real clients.

    Parameters
    ----------
    members
        The ids of the clients that make up the federation, separated by commas; empty: all that are there once
        min_clients are.
    min_clients
        How many clients a federation needs before it begins.
    wait
        Seconds to wait at the start for everybody. A new run then gives up; a resumed one goes on with those who are
        there.
    reply_timeout
        Seconds to wait for replies in a round.
    max_norm
        The largest Euclidean norm of a reply, all tensors together; 0: no limit of this kind.
    norm_factor
        A reply whose norm is above this many times the median of the round's replies is dropped.
    max_samples
        How many samples a client may say it has, for training or for tests; or what sum of their weights.
    sample_limits
        The same for single clients, by their ids: "ward-3: 500, ward-5: 80".
    max_share
        How much one client may count for, as a share of all, whatever number of samples it claims. With fewer than
        three clients there is no such limit.
    max_loss
        The largest loss that a client may report.
    classes
        The classes that there are, by their numbers: "0-9" or "0, 3, 5-7"; empty: all that clients have.
    patience
        After this many rounds in a row without a reply of use the run stops.
    pin_keys
        A client's id belongs to the node key that first claimed it. Off only for trials without node keys.
    secure
        Whether the server sees the sum of contributions alone.
    gateway
        Whether clients in browsers may take part.
    """

    members: str = ""
    min_clients: Whole = 2
    wait: Positive = 600.0
    reply_timeout: Positive = 600.0
    max_norm: NotNegative = 0.0
    norm_factor: Annotated[float, Limits(above=1)] = 10.0
    max_samples: Whole = 1_000_000_000
    sample_limits: str = ""
    max_share: Annotated[float, Limits(above=0, most=1)] = 0.5
    max_loss: Positive = 1e6
    classes: str = ""
    patience: Whole = 3
    pin_keys: bool = True
    secure: SecureSum = SecureSum()
    gateway: Gateway = Gateway()

    def __post_init__(self) -> None:
        check_fields(self)
        _ = self.known_classes, self.limits
        if self.secure.on and self.max_norm:
            raise SettingError(
                "max_norm is a check of single replies, which secure sums hide: secure_clip bounds them at their sites"
            )

    @property
    def known_classes(self) -> frozenset[int] | None:
        """The classes of `classes`; None: any."""
        return classes_in(self.classes) or None

    @property
    def names(self) -> list[str]:
        """The ids of `members`."""
        return _parts(self.members)

    @property
    def limits(self) -> dict[str, int]:
        """The largest numbers of `sample_limits`, by the ids of clients."""
        limits = {}
        for part in _parts(self.sample_limits):
            client, _, said = part.rpartition(":")
            try:
                most = int(said)
            except ValueError:
                most = 0
            if not client.strip() or most < 1:
                raise SettingError(
                    f'sample_limits must be ids and numbers such as "ward-3: 500, ward-5: 80", not {part!r}'
                )
            limits[client.strip()] = most
        return limits

    def most_samples(self, client: ClientId) -> tuple[int, str]:
        """Say how many samples a client may have, and which setting says so."""
        if (own := self.limits.get(str(client))) is not None:
            return own, "sample_limits"
        return self.max_samples, "max_samples"


def _parts(text: str) -> list[str]:
    """Take a list with commas apart."""
    return [part for each in text.split(",") if (part := each.strip())]


@dataclass(frozen=True)
class AppConfig:
    """What the run config of a Flower app asks for."""

    settings: Settings
    deployment: Deployment

    @classmethod
    def read(cls, config: Mapping[str, object]) -> AppConfig:
        """Check a run config."""
        given = as_python(config)
        own = declared(Deployment)
        deployment = Deployment(**arguments(Deployment, given))
        settings = Settings.of({name: value for name, value in given.items() if name not in own})
        for name in settings.tables["data"]:
            called = "data" if name == "name" else name
            raise SettingError(
                f"{called} is a site's own business: say it in the node config of its SuperNode"
            )
        for name in settings.tables["run"]:
            if name in simulated():
                raise SettingError(f"{name} is for simulations: here clients are as they are, leave it out")
        theirs = Assignment.read(given).algorithm.settings()
        for name, value in settings.algorithm.settings().items():
            if value != theirs[name]:  # a site knows the method's settings, and not all others
                raise SettingError(
                    f"{name} may be the method's or another setting: say method.{name} for that of the method, too"
                )
        if deployment.secure.on:
            _check_sums(settings)
            privacy = privacy_of(settings.value("privacy"))
            deployment = replace(deployment, secure=deployment.secure.under(privacy))
        settings.tables["model"].setdefault("name", models.usual(""))
        settings.tables["run"].setdefault("out", "runs/federation")
        read = cls(settings, deployment)
        _ = read.population
        return read

    @property
    def algorithm(self) -> Algorithm:
        """The method."""
        return self.settings.algorithm

    @property
    def population(self) -> Population | None:
        """Who is to come and to go, and when."""
        wanted = population_of(self.settings.value("population"))
        if wanted is not None and wanted.members is not None:
            raise SettingError(
                "population: sites are known by their ids before they come, so a function is for simulations alone: "
                'write {"join": {"ward-7": 20}, "leave": {"ward-3": 50}}'
            )
        return wanted

    @property
    def assignment(self) -> Assignment:
        """What is asked of a site."""
        read = Assignment.read({**self.settings.flat, "classes": self.deployment.classes})
        return replace(read, secure=self.deployment.secure)

    @property
    def seed(self) -> int:
        """Decides every random draw."""
        return seed_of(self.settings)

    @property
    def out(self) -> Path:
        """The server's folder for settings, history and checkpoints."""
        return Path(str(self.settings.value("out"))).expanduser()

    def model(self, shape: tuple[int, ...]) -> Model:
        """Build the backbone that everybody begins with, for samples of a shape."""
        return build_model(self.settings, shape)


def _check_sums(settings: Settings) -> None:
    """Refuse settings under which the server must see single contributions, or single losses."""
    rule, objective = (
        aggregation_of(settings.value("aggregation")),
        objective_of(settings.value("objective")),
    )
    participation = participation_of(settings.value("participation"))
    if privacy_of(settings.value("privacy")) is not None and not isinstance(participation, Everyone):
        raise SettingError(
            f"participation={participation}: who is in a secure sum is told to all who are in it, so that drawing "
            "clients at random hides none of them, and privacy= would account for less than it costs: take everyone"
        )
    if settings.value("compression") is not None:
        raise SettingError(
            "secure sums add up masked numbers, each as long as its range asks for: compression= would save nothing"
        )
    if not rule.additive:
        raise SettingError(
            f"the aggregation {settings.value('aggregation')} looks at single contributions, which secure sums hide: "
            "take mean, and secure_clip to bound what one client can do"
        )
    if objective is not None and not isinstance(objective, QFair):
        raise SettingError(
            f"the objective {settings.value('objective')} needs single clients' losses, which secure sums hide: "
            "take qfair, or the mean loss"
        )


def simulated() -> dict[str, Declared]:
    """Give the settings of a run that are for simulations alone."""
    return {name: one for name, one in declared(train).items() if one.simulated}
