"""An experiment: a federation, a model and a method, made from settings and ready to train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pflego import models, trackers
from pflego.after.joining import with_joined
from pflego.algorithms.base import Algorithm
from pflego.data import load
from pflego.declaration import arguments
from pflego.engines.base import EngineMaker
from pflego.federation.draws import Participation
from pflego.federation.participation import participation_of
from pflego.federation.roster import Federation
from pflego.learning.model import Model
from pflego.runs.record import JOINED, flat
from pflego.runs.run import Run
from pflego.settings.tables import Settings
from pflego.training.callbacks import Callback
from pflego.training.train import train


@dataclass(frozen=True)
class Experiment:
    """A federation, a model and a method, ready to train."""

    settings: Settings
    federation: Federation
    model: Model
    algorithm: Algorithm

    @classmethod
    def build(
        cls, given: Mapping[str, object] | Settings, *, federation: Federation | None = None
    ) -> Experiment:
        """Fill in what is not given, refuse what is not known, and make the parts.

        A federation that was built from the same settings before need not be loaded again.
        """
        settings = given if isinstance(given, Settings) else Settings.of(given)
        trackers.choose(settings.value("track") or [])
        federation = federation or load_data(settings)
        settings.tables["data"].setdefault("clients", federation.source.get("clients", len(federation)))
        settings.tables["model"].setdefault("name", models.usual(str(settings.value("data"))))
        shape = tuple(federation[0].x_train.shape[1:])
        return cls(settings, federation, build_model(settings, shape), settings.algorithm)

    @property
    def seed(self) -> int:
        """Decides every random draw."""
        return seed_of(self.settings)

    @property
    def participation(self) -> Participation:
        """Who takes part in a round."""
        return participation_of(self.settings.value("participation"))

    def train(
        self,
        *,
        resume: bool = False,
        engine: EngineMaker | None = None,
        callbacks: Sequence[Callback] = (),
        progress: bool | None = None,
    ) -> Run:
        """Train it; an engine that is given takes the place of the one in the settings."""
        options = arguments(train, self.settings.tables["run"])
        if engine is not None:
            options["engine"] = engine
        watchers = [*self._trackers(resume), *callbacks]
        return train(
            self.federation,
            self.model,
            self.algorithm,
            **options,
            resume=resume,
            callbacks=watchers,
            progress=progress,
        )

    def _trackers(self, resume: bool) -> list[trackers.Tracker]:
        """Make those of the settings; where they name none, a run that goes on keeps the logs it has."""
        out = self.settings.value("out")
        kept = trackers.begun(Path(str(out))) if resume and out is not None else []
        return trackers.choose(self.settings.value("track") or kept)


def load_data(given: Mapping[str, object] | Settings) -> Federation:
    """Load the federation of some settings, with those who joined it."""
    settings = given if isinstance(given, Settings) else Settings.of(given)
    own = flat({"data": settings.tables["data"]})
    seed = settings.value("data_seed")
    federation = load(
        str(settings.value("data")),
        seed=seed_of(settings) if seed is None else int(str(seed)),
        **arguments(load, own),
    )
    return with_joined(federation, own.get(JOINED, []))


def build_model(settings: Settings, shape: tuple[int, ...]) -> Model:
    """Build the backbone of some settings, for samples of a shape."""
    seed = settings.value("model_seed")
    seed = seed_of(settings) if seed is None else int(str(seed))
    own = arguments(models.build, settings.tables["model"])
    return models.build(str(settings.value("model")), shape, **{**own, "seed": seed})


def seed_of(settings: Settings) -> int:
    """Give the seed that decides every draw that has none of its own."""
    seed = settings.value("seed")
    assert isinstance(seed, int)
    return seed
