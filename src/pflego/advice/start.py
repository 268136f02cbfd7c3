"""What to start with: a method, its rates, and the command that runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from pflego.advice.contenders import ALONE, COMMON_HEAD, ONE_MODEL, OWN_HEADS
from pflego.advice.contest import Candidate, Contest
from pflego.advice.verdict import MARGIN, RELATIVE_MARGIN, Answer
from pflego.algorithms.base import Algorithm
from pflego.algorithms.pflego import PFLEGO
from pflego.federation.draws import Participation, expected, spelled
from pflego.federation.roster import ClientId
from pflego.runs.cost import Cost
from pflego.settings.tables import command

VERDICTS = {
    ALONE[0]: "Let every client learn alone.",
    ALONE[1]: "Let every client learn alone.",
    ONE_MODEL: "Federate, with one model for everybody (FedAvg).",
    OWN_HEADS: "Federate, and give every client a head of its own (PFLEGO).",
    COMMON_HEAD: "Federate, with a head of its own for every client beside a common one (PFLEGO).",
}
_LONGER = 4  # a training that does not overfit is worth this many times the rounds of the contest


@dataclass(frozen=True)
class Start:
    """What to start with."""

    contender: str
    why: str
    algorithm: str
    options: dict[str, object]  # of the method
    participation: str
    rounds: int
    settings: (
        dict[str, object] | None
    )  # as a settings file has them; None where Python made federation or model
    command: str  # or a line of Python

    @property
    def verdict(self) -> str:
        """What to do, in a sentence."""
        return VERDICTS[self.contender]


def choose(
    federating: Answer, personalising: Answer, common: Answer | None, alone: str, costs: Mapping[str, Cost]
) -> tuple[str, str]:
    """Choose the contender to start with, and say why: the simplest that was not shown to be worse.

    Between one model and heads of their own, where figures do not decide, the work they cost does.
    """
    if federating.verdict not in ("yes", "probably"):
        why = "Federating was not shown to do better, and alone nothing has to be sent and nobody waited for."
        if federating.verdict == "can't tell":
            why += " Look longer, or at more clients, before building on it."
        return alone, why
    if personalising.verdict in ("no", "probably not"):
        maybe = "" if personalising.verdict == "no" else "probably "
        return ONE_MODEL, f"One model {maybe}does better than heads of their own."
    name = OWN_HEADS
    words = "a head of its own says least about a client: no message shows which classes it has"
    if common is not None and common.verdict in ("yes", "probably"):
        name, words = COMMON_HEAD, "a common head beside their own helps"
    if personalising.verdict in ("yes", "probably"):
        maybe = "" if personalising.verdict == "yes" else "probably "
        return name, f"Heads of their own {maybe}do better than one model, and {words}."
    times = f"{costs[ONE_MODEL].flops / max(1, costs[name].flops):.2g} times the work"
    return name, f"One model was shown to be neither better nor worse, but is {times}; {words}."


def start(
    contest: Contest,
    chosen: tuple[str, str],
    *,
    data: Mapping[str, object],
    model: Mapping[str, object],
    ids: Sequence[ClientId],
    participation: Participation,
    seed: int,
) -> Start:
    """Put together what `pflego run` needs, or Python, where it made the federation or the model."""
    contender, why = chosen
    candidate = contest.best([contender])
    options = _options(candidate.algorithm)
    visited = expected(participation, ids, seed=seed) / len(ids)
    rounds = stop_after(contest, candidate)
    if rounds is None:
        rounds = _LONGER * contest.curve(candidate)[-1][0]
    if contender != ONE_MODEL:  # heads learn when their clients are asked
        rounds = ceil(rounds / visited)
    training = {
        "algorithm": candidate.algorithm.name,
        **options,
        "participation": spelled(participation),
        "rounds": rounds,
        "seed": seed,
    }
    settings = {name: value for name, value in {**data, **model, **training}.items() if value is not None}
    named = "data" in data and "model_seed" in model
    return Start(
        contender,
        why,
        candidate.algorithm.name,
        options,
        spelled(participation),
        rounds,
        settings if named else None,
        command(_worth_saying(settings))
        if named
        else _python(candidate.algorithm, options, participation, rounds),
    )


def stop_after(contest: Contest, candidate: Candidate) -> int | None:
    """Return the round after which more training did harm that matters on every split, or None."""
    last = replace(candidate, round=contest.curve(candidate)[-1][0])
    for split in contest.splits:
        best, end = contest.figure(candidate, [split]), contest.figure(last, [split])
        margin = MARGIN if contest.task.higher_is_better else RELATIVE_MARGIN * best
        if (best - end if contest.task.higher_is_better else end - best) <= margin:
            return None
    return candidate.round


def _options(algorithm: Algorithm) -> dict[str, object]:
    """Return the method's settings that are worth saying."""
    wanted = ["steps", "client_lr", "server_lr", "labels"]
    if isinstance(algorithm, PFLEGO) and algorithm.common_head:
        wanted.append("common_head")
    settings = algorithm.settings()
    if settings["head_init"] != "zeros":
        wanted.append("head_init")
    return {name: value for name, value in settings.items() if name in wanted}


def _worth_saying(settings: Mapping[str, object]) -> dict[str, object]:
    """Keep the settings a command has to say: not those that hold anyway."""
    seed = settings["seed"]
    usual = {"seed": 0, "data_seed": seed, "model_seed": seed, "participation": "everyone"}
    return {name: value for name, value in settings.items() if usual.get(name) != value}


def _python(
    algorithm: Algorithm, options: Mapping[str, object], participation: Participation, rounds: int
) -> str:
    made = ", ".join(f"{name}={value!r}" for name, value in options.items())
    return (
        f"pflego.train(federation, model, pflego.{type(algorithm).__name__}({made}), "
        f"rounds={rounds}, participation=pflego.{participation!r})"
    )
