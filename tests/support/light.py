"""Light clients in the place of torch's: an engine that plays rounds with pflego_light, in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import pflego_light as light
from pflego.algorithms.base import Algorithm
from pflego.engines.base import EngineMaker, Gathered, Outcome, Turn, Work
from pflego.exchange.metrics import Metric
from pflego.federation.roster import ClientId
from pflego.learning.evaluation import Score
from pflego.learning.problems import Problems
from pflego.weights import Weights, nbytes
from pflego_light.arrays import Weights as Arrays


def arrays(weights: Weights) -> Arrays:
    return {name: tensor.detach().numpy() for name, tensor in weights.items()}


def tensors(weights: Arrays) -> Weights:
    return {name: torch.from_numpy(np.array(array)) for name, array in weights.items()}


def told(now: object) -> light.Round:
    """What a light client is told of a round."""
    facts = {name: value for name, value in vars(now).items() if name != "largest_scale"}
    if facts["emphasis"] is not None:
        emphasis = vars(facts["emphasis"])
        facts["emphasis"] = light.Emphasis(emphasis["power"], emphasis["above"], emphasis["times"])
    return light.Round(**facts)


@dataclass
class LightEngine:
    """Plays everybody's rounds by a kit."""

    kit: Path
    problems: Problems
    states: Mapping[ClientId, Weights]

    @cached_property
    def clients(self) -> list[light.Client]:
        everybody, kit = self.problems.federation, light.Kit.read(self.kit)
        federation = light.Federation(
            "test",
            clients=len(everybody),
            samples=int(everybody.sizes.sum()),
            task="regression" if everybody.classes is None else "classification",
            classes=tuple(everybody.classes or ()),
            most_classes=everybody.most_classes or 0,
            outputs=everybody.outputs,
        )
        return [
            light.Client(
                kit,
                light.Data(c.id, *(plain(t) for t in (c.x_train, c.y_train, c.x_test, c.y_test))),
                federation,
            )
            for c in everybody
        ]

    def run(self, turns: Sequence[Turn], shared: Weights) -> Work:
        outcomes = []
        for turn in turns:
            client = self.clients[turn.position]
            state = arrays(self.states[client.data.id])
            done = client.work(told(turn.now), arrays(shared), state)
            sent = tensors(done.contribution)
            outcomes.append(
                Outcome(
                    turn.position,
                    client.data.id,
                    len(client.data.x_train),
                    state=tensors(done.state),
                    metrics={name: Metric(*metric) for name, metric in done.metrics.items()},  # type: ignore[arg-type]
                    contribution=sent,
                    bytes_up=nbytes(sent),
                    finite=done.finite,
                )
            )
        return Work(outcomes)

    def pool(self, gathered: Gathered) -> Gathered:
        return gathered

    def scores(self, shared: Weights, *, adapt: bool = False) -> list[Score]:
        found = [
            client.score(arrays(shared), arrays(self.states[client.data.id]), adapt=adapt)
            for client in self.clients
        ]
        return [Score(one.samples, one.loss, one.score) for one in found]


def plain(tensor: Tensor) -> npt.NDArray[np.generic]:
    return tensor.numpy()


def assert_near(ours: Weights, theirs: Weights, share: float = 1e-5) -> None:
    """Compare by norms: after thousands of steps, single small numbers differ in their last digits."""
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert (ours[name] - tensor).norm() <= share * max(1.0, float(tensor.norm())), name


def engine(kit: Path) -> EngineMaker:
    """What `train(engine=...)` takes."""

    def make(problems: Problems, algorithm: Algorithm, states: Mapping[ClientId, Weights]) -> LightEngine:
        return LightEngine(kit, problems, states)

    return make
