"""Corollary 1, measured: how fast the gradient of the federation's loss vanishes with the number of rounds.

With rho = 1/L sqrt(r / (T I)) and |grad l_i| <= G the corollary promises, in expectation over the cohorts,

    1/T sum_{t=1..T} |grad L(theta_{t-1})|^2
        <=  1/sqrt(T) (L sqrt(I/r) (L(theta_0) - L*)  +  G^2 (I + r) / (2 sqrt(I r)))

`measure` trains once for each T and gives both sides. The gradients of the left are those that all clients would send
in round t, from theta as it is before that round and with their heads fitted to it; beside a common head W_0 belongs to
what is shared, and heads that are solved for give the gradient of P. On the right, L is the largest constant among the
clients in all that the joint step moves, measured at the start; G the longest gradient that any client had in any
round; L* >= 0 is taken as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pflego.algorithms.pflego import PFLEGO
from pflego.algorithms.pflego.rates import SMOOTHNESS
from pflego.errors import SettingError
from pflego.exchange.round import Round
from pflego.federation.draws import Participation, expected
from pflego.federation.roster import Federation
from pflego.learning.head_group import HeadGroup
from pflego.learning.model import Model
from pflego.learning.problem import Problem
from pflego.learning.problems import Problems
from pflego.learning.theory import corollary_bound, corollary_rate
from pflego.runs.history import HistoryRow
from pflego.runs.run import Run
from pflego.training.callbacks import Callback
from pflego.training.train import train
from pflego.weights import Weights, norm, to, weighted_sum


@dataclass(frozen=True)
class Point:
    """What one T gave."""

    rounds: int
    server_lr: float
    squared_gradient: float  # mean over the rounds, the left of the corollary
    bound: float  # its right
    smoothness: float  # L at the start
    last_smoothness: float  # after the last round: above L, the corollary's assumption did not hold
    largest_gradient: float  # G
    first_loss: float  # L(theta_0)


@dataclass
class SquaredGradients(Callback):
    """Notes |grad L|^2 of the whole federation before every round, and the longest gradient of a client."""

    values: list[float] = field(default_factory=list)
    largest: float = 0.0

    def on_start(self, run: Run) -> None:
        """Look at theta_0."""
        self._look(run)

    def on_round(self, run: Run, row: HistoryRow) -> None:
        """Look at theta_t, unless no round follows."""
        if row["round"] != run.plan.rounds:
            self._look(run)

    def _look(self, run: Run) -> None:
        """Add up what all clients would send, each with its head fitted to the present theta."""
        total: Weights = {}
        for position in range(len(run.federation)):
            problem = run.problems[position]
            state = to(run.states[problem.client.id], problem.device)
            gradient = run.algorithm.client_update(Round(1), run.shared, state, problem).contribution
            self.largest = max(self.largest, norm(gradient))
            total = weighted_sum([(1, total), (problem.samples / run.federation.samples, gradient)])
        self.values.append(norm(total) ** 2)


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
    """Train for each T with Corollary 1's rate; give the mean squared gradient norms beside their bound."""
    if algorithm.at_home:
        raise SettingError(
            "the corollary speaks of one gradient per round: leave passes at 1, and batch_size out"
        )
    clients, problems = len(federation), Problems(federation, model)
    participants = expected(participation, federation.ids, seed=seed)
    shared = algorithm.init_shared(model, problems.outputs, seed)
    states = [algorithm.init_state(problems[position], seed) for position in range(clients)]
    constant = _smoothness(algorithm, problems, shared, states)
    first_loss = _loss(algorithm, problems, shared, states)
    points = []
    for rounds in horizons:
        rate = corollary_rate(constant, expected=participants, clients=clients, rounds=rounds)
        watcher = SquaredGradients()
        run = train(
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
        last = [run.states[client] for client in federation.ids]
        points.append(
            Point(
                rounds,
                rate,
                sum(watcher.values) / rounds,
                corollary_bound(
                    constant,
                    expected=participants,
                    clients=clients,
                    rounds=rounds,
                    largest_gradient=watcher.largest,
                    to_lose=first_loss,
                ),
                constant,
                _smoothness(algorithm, problems, run.shared, last),
                watcher.largest,
                first_loss,
            )
        )
        tell(points[-1])
    return points


def _smoothness(algorithm: PFLEGO, problems: Problems, shared: Weights, states: Sequence[Weights]) -> float:
    """L: the largest constant of a client's loss in all that the joint step moves, its head fitted first."""
    rates = replace(algorithm, server_lr="auto", server_optimizer="sgd").rates

    def constant(problem: Problem, state: Weights) -> float:
        [work] = algorithm.heads.fit(shared, [state], HeadGroup([problem], problem.features(shared)))
        return float(rates.measure(Round(1), problem, algorithm.heads, shared, work, None)[SMOOTHNESS])

    return max(constant(problems[position], state) for position, state in enumerate(states))


def _loss(algorithm: PFLEGO, problems: Problems, shared: Weights, states: Sequence[Weights]) -> float:
    """L(theta_0) with first heads, the penalty of a decay included."""
    total = 0.0
    for position, state in enumerate(states):
        problem = problems[position]
        head = algorithm.heads.whole(shared, state, problem)
        own = norm(algorithm.parts.own(shared, head, problem)) ** 2
        loss = problem.loss({**shared, **head}) + algorithm.head_decay / 2 * own
        total += problem.samples / problems.federation.samples * loss
    return total
