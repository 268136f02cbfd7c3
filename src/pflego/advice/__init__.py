"""How much personalisation does a federation need? The paper's first open question, answered by a quick look.

A contest on a part of each client's own training data that is held out: learning alone, one model for everybody,
heads of their own, and heads of their own beside a common one. Beside it, how different the clients are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from pflego import models
from pflego.advice.contenders import (
    ALONE,
    COMMON_HEAD,
    FEDERATED,
    ONE_MODEL,
    OWN_HEADS,
    PERSONAL,
    Contender,
    contenders,
    costs,
)
from pflego.advice.contest import Contest, hold
from pflego.advice.heterogeneity import MOST_BESIDE, Differences, agreements, input_shift, label_distance
from pflego.advice.losers import client_figures, losers
from pflego.advice.plan import MOST_CLIENTS, plan
from pflego.advice.start import choose, start, stop_after
from pflego.advice.verdict import Answer, answer, shrinks
from pflego.advice.words import Advice, Standing
from pflego.errors import SettingError, check_positive
from pflego.federation.draws import Participation, check
from pflego.federation.participation import Everyone, Fixed, participation_of
from pflego.federation.roster import ClientId, Federation, check_federation
from pflego.learning.evaluation import gini, worst_tenth
from pflego.learning.model import Model
from pflego.randomness import numpy_generator
from pflego.report.words import Metric, count, duration
from pflego.runs.cost import Cost

__all__ = ["Advice", "advise"]

_A_ROUND = 20  # clients that take part in a round, where nobody says


def advise(
    federation: Federation,
    model: Model | None = None,
    *,
    steps: int = 50,
    participation: Participation | int | None = None,
    rounds: int | None = None,
    look_at: int | None = None,
    splits: int = 2,
    budget_seconds: float = 60.0,
    seed: int = 0,
    device: str | torch.device = "auto",
    tell: Callable[[str], None] = lambda words: None,
) -> Advice:
    """Find out whether federating pays, whether personalising pays, and what to start with.

    Parameters
    ----------
    federation
        Who. Only training data are looked at.
    model
        What; without it the usual backbone for the data.
    steps
        tau, local steps per round, of every method that has them.
    participation
        Who takes part in a round of the training to come; everyone, or 20 clients of more, if not given. In the
        contest everyone does.
    rounds, look_at
        How long the contest is, and how many clients compete, drawn at random. If not said, as the budget allows: at
        most 20 rounds with 50 clients.
    splits
        How often a part of the data is held out: two or more.
    budget_seconds
        What the contest may take on two modest cores. It is reckoned, not measured, so that the advice does not
        depend on the machine.
    seed
        Decides every random draw.
    device
        "auto" (CUDA, MPS or the CPU), or a device's name.
    tell
        Told what is going on.
    """
    began = time.perf_counter()
    _check(federation, rounds, look_at, splits, budget_seconds)
    participation = _participation(participation, federation.ids)
    if model is None:
        usual = models.usual(str(federation.source.get("data")))
        model = models.build(usual, tuple(federation[0].x_train.shape[1:]), seed=seed)
    looked = _some(federation, look_at or MOST_CLIENTS, seed)
    competing = contenders(model, looked, steps=steps)
    cost = costs(competing, looked, model, device=device)
    planned = plan(
        cost, competing, looked, splits=splits, budget=budget_seconds, rounds=rounds, look_at=look_at
    )
    looked = _some(looked, planned.clients, seed)
    compared = _comparable(looked)
    tell(
        f"{count(len(looked), 'client')}, {count(planned.rounds, 'round')}, {splits} splits: "
        f"about {duration(planned.seconds)}"
        + (", more than the budget" if planned.seconds > budget_seconds else "")
    )
    held = hold(
        looked,
        model,
        competing,
        compared,
        rounds=planned.rounds,
        splits=splits,
        seed=seed,
        device=device,
        tell=tell,
    )
    tell("how different the clients are")
    federating = _answer(held, looked, "Does federating pay over learning alone?", FEDERATED, ALONE, seed)
    personalising = _answer(
        held, looked, "Does personalising pay over one model?", PERSONAL, [ONE_MODEL], seed
    )
    common = None
    if any(contender.name == COMMON_HEAD for contender in competing):
        common = _answer(
            held, looked, "Does a common head pay beside one's own?", [COMMON_HEAD], [OWN_HEADS], seed
        )
    alone = held.best(ALONE).name
    chosen = start(
        held,
        choose(federating, personalising, common, alone, cost),
        data=federation.source,
        model=model.source,
        ids=federation.ids,
        participation=participation,
        seed=seed,
    )
    return Advice(
        start=chosen,
        federating=federating,
        personalising=personalising,
        common_head=common,
        losers=losers(held, chosen.contender, [str(client_id) for client_id in looked.ids], seed=seed),
        differences=_differences(looked, model, held, seed),
        standings=tuple(_standing(held, contender, cost[contender.name]) for contender in competing),
        metric=Metric.of(federation.task),
        clients=len(federation),
        looked_at=len(looked),
        compared=federating.clients,
        held_out=sum(len(split.owners) for split in held.splits),
        rounds=planned.rounds,
        splits=splits,
        seed=seed,
        notes=tuple(_notes(federation, looked, compared, held, chosen.contender)),
        seconds=time.perf_counter() - began,
    )


def _check(
    federation: Federation, rounds: int | None, look_at: int | None, splits: int, budget: float
) -> None:
    check_federation(federation)
    if len(federation) < 2:
        raise SettingError(
            "a federation of one client has nobody to federate with: let it learn alone, --algorithm local"
        )
    for name, value in [("rounds", rounds), ("look_at", look_at), ("splits", splits)]:
        if value is not None:
            check_positive(name, value, whole=True)
    if look_at == 1:
        raise SettingError("look_at must be 2 or more: one client cannot be compared with others")
    if splits == 1:
        raise SettingError("splits must be 2 or more: what is chosen on one is measured on another")
    check_positive("budget_seconds", budget)


def _participation(wanted: Participation | int | None, ids: Sequence[ClientId]) -> Participation:
    if wanted is None:
        return Everyone() if len(ids) <= _A_ROUND else Fixed(_A_ROUND)
    chosen = participation_of(wanted)
    check(chosen, ids)
    return chosen


def _some(federation: Federation, most: int, seed: int) -> Federation:
    """Draw at most `most` clients at random, and keep their order."""
    if len(federation) <= most:
        return federation
    drawn = numpy_generator(seed, "look at").choice(len(federation), most, replace=False)
    return Federation(
        [federation[int(position)] for position in np.sort(drawn)],
        source=federation.source,
        schema=federation.schema,
    )


def _comparable(federation: Federation) -> npt.NDArray[np.bool_]:
    """Mask the clients that tell methods apart: those with two samples or more, and more than one class."""
    found = np.array(
        [len(c.x_train) > 1 and (federation.classes is None or len(c.classes) > 1) for c in federation]
    )
    if found.sum() < 2:
        raise SettingError(
            f"of {len(federation)} clients looked at, {found.sum()} have two samples or more and more than one "
            f"class: there is nothing to compare. With one class a client needs no model of its own"
        )
    return found


def _answer(
    held: Contest, looked: Federation, question: str, ours: Sequence[str], theirs: Sequence[str], seed: int
) -> Answer:
    return answer(
        question,
        held.fair(ours),
        held.fair(theirs),
        [str(client_id) for client_id in looked.ids],
        held.task,
        shrinking=shrinks(held, ours, theirs),
        seed=seed,
    )


def _differences(looked: Federation, model: Model, held: Contest, seed: int) -> Differences:
    looked = _some(looked, MOST_BESIDE, seed)
    distance, interval = label_distance(looked, seed=seed)
    return Differences(
        len(looked),
        distance,
        interval,
        input_shift(looked, model, seed=seed),
        input_shift(looked, model, seed=seed, by_label=False),
        gini(looked.sizes.tolist()) or 0.0,
        **{
            field: agreements(looked, model, *held.early[name], seed=seed)
            for field, name in [("own_heads", OWN_HEADS), ("one_model", ONE_MODEL)]
        },
    )


def _standing(held: Contest, contender: Contender, cost: Cost) -> Standing:
    fair, best = held.fair([contender.name]), held.best([contender.name])
    figures = client_figures(fair, held.task).tolist()
    settings = best.algorithm.settings()
    return Standing(
        contender.name,
        contender.words,
        held.task.metric_value(float(fair.scores.mean())),
        worst_tenth(figures, higher_is_better=held.task.higher_is_better),
        rate=float(str(settings.get("server_lr", settings["client_lr"]))),
        round=best.round,
        curve=held.curve(best),
        cost=cost,
    )


def _notes(
    federation: Federation,
    looked: Federation,
    compared: npt.NDArray[np.bool_],
    held: Contest,
    chosen: str,
) -> list[str]:
    """List what else should be known before the advice is taken."""
    notes = []
    if len(looked) < len(federation):
        notes.append("With all clients federating has more to learn from than it had here.")
    if left_out := len(looked) - int(compared.sum()):
        notes.append(
            f"{count(left_out, 'client')} of a single class or sample learned with the others but "
            f"{'was' if left_out == 1 else 'were'} not compared: there, a model of one's own cannot be wrong."
        )
    if held.unseen:
        share = held.unseen / sum(len(split.owners) for split in held.splits)
        notes.append(
            f"{100 * share:.0f} % of the held-out samples are of a class that their client has no other sample of; "
            f"heads of their own and learning alone get these wrong."
        )
    if (last := stop_after(held, held.best([chosen]))) is not None:
        notes.append(f"Training for more than about {count(last, 'round')} did harm: stop early.")
    return notes
