"""When the promise of differential privacy holds for a plan and a method, and what rounds of them cost."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from pflego.algorithms.base import Algorithm
from pflego.errors import SettingError
from pflego.exchange.accountant import Accountant, sampling_of
from pflego.exchange.aggregation import Mean
from pflego.exchange.objective import QFair
from pflego.exchange.privacy import per_round
from pflego.federation.roster import Federation
from pflego.runs.plan import Plan
from pflego.runs.run import Run

COVERED = (
    "the shared weights of every round, and all that is made of them: epsilon bounds how well anybody who sees them "
    "can tell whether a client took part, and with which data"
)
NOT_COVERED = (
    "losses, scores, sample counts and who was asked when, where these are shown; and each client's own head, which "
    "stays with its client"
)


def check_private(plan: Plan, algorithm: Algorithm) -> None:
    """Refuse what would break the promise, with the way out."""
    if plan.privacy is None:
        return
    if plan.weighting != "equal":
        raise SettingError(
            "privacy= needs weighting='equal': weights by sample counts would tell how many samples a client has"
        )
    if plan.missing not in ("zero", "inverse"):
        raise SettingError(
            f"privacy= needs a fixed denominator, and missing={plan.missing!r} divides by who has answered: "
            "take missing='zero' or 'inverse'"
        )
    if not isinstance(plan.aggregation, Mean):
        raise SettingError(
            f"privacy= adds noise to a sum, and aggregation={plan.aggregation} looks at single contributions: one "
            "client can move it by more than the clip. Leave out aggregation="
        )
    if plan.objective is not None and not isinstance(plan.objective, QFair):
        raise SettingError(
            f"privacy= does not cover the losses that objective={plan.objective} sends to the server: take qfair, "
            "whose clients keep them, or none"
        )
    if plan.population is not None:
        raise SettingError(
            "privacy= is accounted for clients that are there all along: leave out population="
        )
    _check_method(algorithm)


def _check_method(algorithm: Algorithm) -> None:
    if algorithm.family == "alone":
        raise SettingError(f"{algorithm.name} sends nothing that privacy= could protect: leave it out")
    if algorithm.largest:
        raise SettingError(
            f"{algorithm.name}, as it is set, sends {', '.join(sorted(algorithm.largest))}, of which the server takes "
            "the largest, one client's own: no noise on a sum covers that. Give a number instead of an automatic rate"
        )
    if type(algorithm).sent_alone is not Algorithm.sent_alone:
        raise SettingError(
            f"{algorithm.name} sends the server what is one client's alone, which no noise on a sum covers: take a "
            "method that only sums, such as pflego or fedavg"
        )
    if algorithm.divides_by_counts:
        raise SettingError(
            f"the server of {algorithm.name} divides by a count of clients or samples that is summed up with the rest, "
            "and noise on that count leaves nothing of the quotient: take pflego, fedavg or another method that only "
            "sums"
        )


@dataclass(frozen=True)
class Spent:
    """How much privacy a run has cost."""

    epsilon: float
    delta: float
    neighbours: str  # what two federations differ in that can hardly be told apart

    @classmethod
    def of(cls, run: Run) -> Spent | None:
        """Look it up in the history, or account for it; None without privacy."""
        accountant = accountant_of(run.plan, run.algorithm, run.federation)
        if accountant is None:
            return None
        known = run.history[-1].get("epsilon") if run.history else 0.0
        epsilon = accountant.epsilon(len(run.history)) if known is None else known
        return cls(epsilon, accountant.delta, accountant.sampling.neighbours)

    def __str__(self) -> str:
        if self.epsilon == inf:
            return "none: there is no noise"
        return f"epsilon {self.epsilon:.3g} at delta {self.delta:g}, for {self.neighbours}"


def accountant_of(plan: Plan, algorithm: Algorithm, federation: Federation) -> Accountant | None:
    """Give what says how much privacy a run's rounds cost; None without privacy."""
    if plan.privacy is None:
        return None
    there = len(federation) - len(plan.joined_after)  # with fewer, a cohort is a larger part of them
    sampling = sampling_of(plan.participation, federation.ids[:there])
    return Accountant(sampling, per_round(plan.privacy.noise, algorithm.exchanges), plan.privacy.delta)
