"""Advice: all figures, and what they say in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pflego.advice.contenders import ONE_MODEL, OWN_HEADS, PERSONAL
from pflego.advice.heterogeneity import Agreement, Differences, Kind
from pflego.advice.losers import Losers
from pflego.advice.start import Start
from pflego.advice.statistics import Chance
from pflego.advice.verdict import CERTAINTY, Answer, difference, number, size
from pflego.files import make_folder, write_atomically
from pflego.report.words import Metric, amount, count, duration
from pflego.runs.cost import Cost, Energy
from pflego.runs.record import as_toml
from pflego.settings.tables import as_tables

_SLIGHTLY, _DIFFERENT, _VERY = 0.05, 0.25, 0.6  # of the way from chance to 1: from there on labels are so
_AGREE, _HARDLY = 0.7, 0.3  # of what noise leaves: from here on gradients agree, below this hardly
_NAMED = 3  # of those that lose, the first that are named

_KINDS: dict[Kind, str] = {
    "labels": "So there is a skew of labels.",
    "inputs": "All inputs differ, whatever their labels, so clients see different things: a shift of inputs.",
    "meaning": "All inputs together do not differ, so the same inputs have different labels: a shift of concepts, "
    "which no single model can learn.",
    "inputs or meaning": "Beside the skew of labels, clients see different things, or have other names for them.",
    "sizes": "They have very unequal amounts of data.",
}
DEFINITIONS = {
    "labels": f"mean distance between the label distributions of two clients, 0 the same, 1 nothing in common (total "
    f"variation; in regression Kolmogorov and Smirnov's). Different from {100 * _DIFFERENT:g} % of the way from "
    f"chance to 1, very different from {100 * _VERY:g} % on.",
    "inputs": "share of the spread of inputs with one label that goes with the client, as the untrained backbone "
    "sees them, beyond what chance gives: 0 none, 1 all.",
    "gradients": f"mean cosine between gradients of the same shared weights, from halves of two clients' data, "
    f"beside that from the two halves of one client, which is what noise leaves of it. From "
    f"{100 * _AGREE:g} % of that on they agree, below {100 * _HARDLY:g} % hardly.",
}


@dataclass(frozen=True)
class Standing:
    """What a contender came to."""

    name: str
    words: str
    figure: float  # at rate and round chosen on other splits
    worst_tenth: float | None
    rate: float  # the best over all splits: client_lr, or PFLEGO's server_lr
    round: int
    curve: list[tuple[int, float]]  # (round, figure) at that rate
    cost: Cost


@dataclass(frozen=True)
class Advice:
    """How different clients are, what pays, and what to start with. `str` gives the words."""

    start: Start
    federating: Answer  # the best that is federated over the best that is alone
    personalising: Answer  # the best with heads of their own over one model
    common_head: Answer | None  # heads beside a common one over heads alone
    losers: tuple[
        Losers, ...
    ]  # who would be better off alone, or with one model, than with what to start with
    differences: Differences
    standings: tuple[Standing, ...]
    metric: Metric
    clients: int  # in the federation
    looked_at: int
    compared: int  # of these, those with more than one class and more than one sample
    held_out: int  # samples, over all splits
    rounds: int
    splits: int
    seed: int
    notes: tuple[str, ...]
    seconds: float  # that it took

    def __str__(self) -> str:
        """The words, with the command to start with."""
        said = [self.start.verdict, *(f"{heading} {words}" for heading, words in self.paragraphs().items())]
        return "\n\n".join([*said, f"Start with:\n{self.start.command}"])

    def paragraphs(self) -> dict[str, str]:
        """Map question to answer."""
        return {
            "Why?": self.start.why,
            "Does federating pay?": self.federating.words(self.metric, over="learning alone"),
            "Does personalising pay?": self._personalising(),
            "Who would lose?": " ".join(_of_losers(one, self.metric) for one in self.losers),
            "How different are the clients?": self._differences(),
            "What does a round cost a client?": self._cost(),
            "How sure is that?": self._certainty(),
        }

    def figures(self) -> dict[str, object]:
        """Return everything as plain values, for JSON."""
        return {
            "verdict": self.start.verdict,
            "words": self.paragraphs(),
            "certainty": CERTAINTY,
            "definitions": DEFINITIONS,
            **asdict(self),
        }

    def save(self, folder: str | Path) -> Path:
        """Write advice.json, the picture advice.png and, where `pflego run` can make the federation, start.toml."""
        from pflego.advice.drawing import draw

        folder = Path(folder)
        make_folder(folder)
        write_atomically(folder / "advice.json", (json.dumps(self.figures(), indent=1) + "\n").encode())
        if self.start.settings is not None:
            write_atomically(folder / "start.toml", as_toml(as_tables(self.start.settings)).encode())
        draw(self, folder / "advice.png")
        return folder

    def _personalising(self) -> str:
        said = self.personalising.words(self.metric, over="one model for everybody")
        if self.common_head is None:
            return said
        return f"{said} {_of_common_head(self.common_head, self.metric)}"

    def _differences(self) -> str:
        found = self.differences
        labels = (
            f"Their labels are {_degree(found.labels)} (distance {found.labels.value:.2f} of 1, "
            f"{found.labels.by_chance:.2f} by chance)."
        )
        if found.inputs is None:
            inputs = "No label is found with two clients, so inputs cannot be compared."
        elif found.inputs.real:
            inputs = f"Of the spread of inputs with one label, {100 * found.inputs.value:.0f} % goes with the client."
        else:
            inputs = "Inputs with the same label do not differ between clients beyond chance."
        gradients = (
            f"What they ask of a shared backbone, each with a head of its own, {_agreeing(found.own_heads)}; what "
            f"they ask of one model {_agreeing(found.one_model)}."
        )
        return " ".join([labels, inputs, *(_KINDS[kind] for kind in found.kinds), gradients])

    def _cost(self) -> str:
        costs = {standing.name: standing.cost for standing in self.standings}
        own = costs[self.start.contender]
        said = (
            f"{amount(own.flops, 'FLOP')} of work in {duration(own.seconds)} on this machine's {own.device}, "
            f"{amount(own.memory, 'B')} of memory, {amount(own.bytes_down + own.bytes_up, 'B')} sent both ways, about "
            f"{amount(own.joules(), 'J')} (if {Energy()}), for a client of {count(own.samples, 'sample')}."
        )
        other, words = OWN_HEADS, "a head of its own on a shared backbone (PFLEGO)"
        if self.start.contender in PERSONAL:
            other, words = ONE_MODEL, "one model for everybody (FedAvg)"
        return f"{said} With {words} it would be {costs[other].flops / max(1, own.flops):.2g} times the work."

    def _certainty(self) -> str:
        looked = (
            f"all {count(self.clients, 'client')}"
            if self.looked_at == self.clients
            else f"{self.looked_at} of {count(self.clients, 'client')}"
        )
        whom = "clients like these" if self.federating.over == "clients" else "these clients, not of others"
        said = (
            f"Looked at {looked}, {count(self.rounds, 'round')}, {count(self.held_out, 'held-out sample')} in "
            f"{self.splits} splits; test data were not touched. Intervals are 95 % and speak of {whom}; what a longer "
            f"training or other rates would do is not in them."
        )
        return " ".join([said, *self.notes])


def _of_common_head(answer: Answer, metric: Metric) -> str:
    match answer.verdict:
        case "yes" | "probably":
            said = "A common head beside their own helps"
        case "no" | "probably not":
            said = "A common head beside their own does harm"
        case "no difference":
            said = "A common head beside their own makes no difference that matters"
        case _:
            return "Whether a common head beside their own helps can't be told: try --common-head too."
    maybe = " probably" if answer.verdict.startswith("probably") else ""
    return f"{said}{maybe}: {difference(answer.gain, answer.interval, metric)}."


def _of_losers(losers: Losers, metric: Metric) -> str:
    """Say how many lose, which, by how much, and what becomes of the worst tenth."""
    tenth = (
        f"the worst tenth has {metric.text(losers.worst_tenth)} this way and "
        f"{metric.text(losers.worst_tenth_otherwise)} {losers.otherwise}"
    )
    compared = count(losers.clients, "client")
    if not losers.losses:
        return f"Of {compared} nobody would be better off {losers.otherwise}; {tenth}."
    named = ", ".join(
        f"{client} by {size(loss, metric)}" for client, loss in list(losers.losses.items())[:_NAMED]
    )
    more = len(losers.losses) - _NAMED
    others = f" and {more} more" if more > 0 else ""
    clear = ", ".join(losers.clear[:_NAMED]) + (", ..." if len(losers.clear) > _NAMED else "")
    beyond = f"{len(losers.clear)} of them ({clear})" if losers.clear else "none of them"
    return (
        f"{len(losers.losses)} of {compared} would be better off {losers.otherwise}: {named}{others}, "
        f"beyond chance for {beyond}; {tenth}."
    )


def _degree(labels: Chance) -> str:
    if not labels.real or labels.beyond < _SLIGHTLY:
        return "as alike as chance lets them be"
    words = {_VERY: "very different", _DIFFERENT: "different", _SLIGHTLY: "slightly different"}
    return next(word for limit, word in words.items() if labels.beyond >= limit)


def _agreeing(rounds: Mapping[int, Agreement]) -> str:
    """Say how far gradients agree, in that of the rounds where there is least noise."""
    if not rounds:
        return "cannot be compared"
    clear = max(rounds.values(), key=lambda own: own.within)
    if clear.share is None:
        return f"is mostly noise (cosine {number(clear.within)} within a client)"
    word = (
        "agrees" if clear.share >= _AGREE else "hardly agrees" if clear.share < _HARDLY else "agrees in part"
    )
    if clear.interval.high < 0:
        word = "pulls apart"
    return f"{word} (cosine {number(clear.between)}, noise leaves {number(clear.within)})"
