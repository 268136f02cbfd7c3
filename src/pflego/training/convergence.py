"""Corollary 1, measured: how fast the gradient of the federation's loss vanishes with the number of rounds.

With rho = 1/L sqrt(r / (T I)), the mean over the T rounds of |grad_theta L|^2 falls as O(1 / sqrt(T)) for a given
I and r. `measure` trains once for each T and gives that mean; L is the largest smoothness constant among the
clients at the start, each with its head adapted to the first backbone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pflego.algorithms.pflego import PFLEGO
from pflego.federation.draws import Participation, expected
from pflego.federation.roster import Federation
from pflego.learning.model import Model
from pflego.learning.problem import Problems
from pflego.learning.theory import corollary_rate
from pflego.runs.history import HistoryRow
from pflego.runs.run import Run
from pflego.training.callbacks import Callback
from pflego.training.train import train
from pflego.weights import Weights, to, weighted_sum


@dataclass(frozen=True)
class Point:
    """What one T gave."""

    rounds: int
    server_lr: float
    squared_gradient: float  # mean over the rounds


@dataclass
class SquaredGradient(Callback):
    """Notes |grad_theta L|^2 over the whole federation after every round."""

    values: list[float] = field(default_factory=list)

    def on_round(self, run: Run, row: HistoryRow) -> None:
        """Add up all clients' gradients, each with its present head."""
        total: Weights = {}
        for position in range(len(run.federation)):
            problem = run.problems[position]
            state = to(run.states[problem.client.id], problem.device)
            gradient = problem.gradient(run.algorithm.personal(run.shared, state, problem))
            own = {name: gradient[name] for name in run.model.names}
            total = weighted_sum([(1, total), (problem.samples / run.federation.samples, own)])
        self.values.append(sum(float(tensor.double().square().sum()) for tensor in total.values()))


def first_smoothness(federation: Federation, model: Model, algorithm: PFLEGO, *, seed: int) -> float:
    """L: the largest smoothness constant of a client's loss in theta, at the start."""
    shared, problems = model.weights(), Problems(federation, model)
    largest = 0.0
    for position in range(len(federation)):
        problem = problems[position]
        head = algorithm.adapt(shared, algorithm.init_state(problem, seed), problem)
        largest = max(largest, problem.backbone_smoothness({**shared, **head}, iterations=20))
    return largest


def measure(
    federation: Federation,
    model: Model,
    algorithm: PFLEGO,
    *,
    horizons: Sequence[int],
    participation: Participation,
    seed: int = 0,
    tell: Callable[[Point], None] = lambda point: None,
) -> list[Point]:
    """Train for each T with Corollary 1's rate; give the mean squared gradient norms."""
    clients = len(federation)
    largest = first_smoothness(federation, model, algorithm, seed=seed)
    points = []
    for rounds in horizons:
        rate = corollary_rate(
            largest,
            expected=expected(participation, federation.ids, seed=seed),
            clients=clients,
            rounds=rounds,
        )
        watcher = SquaredGradient()
        train(
            federation,
            model,
            replace(algorithm, server_lr=rate, server_optimizer="sgd"),
            rounds=rounds,
            participation=participation,
            seed=seed,
            evaluate_every=0,
            callbacks=[watcher],
            progress=False,
        )
        points.append(Point(rounds, rate, sum(watcher.values) / rounds))
        tell(points[-1])
    return points
