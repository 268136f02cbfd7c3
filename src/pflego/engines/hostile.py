"""What arrives at the server where some clients lie."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from pflego.engines.base import Outcome, Turn, Work
from pflego.exchange.liars import Liars
from pflego.exchange.round import Round
from pflego.federation.roster import ClientId
from pflego.weights import is_finite


def spoiled(
    work: Work,
    liars: Liars,
    turns: Sequence[Turn],
    now: Round,
    *,
    ids: Sequence[ClientId],
    largest: Collection[str],
) -> Work:
    """Put lies in the place of what liars have worked for. Nobody else's work is changed, or looked at.

    ids
        All clients, by position.
    largest
        Names in contributions that are neither gradients nor differences: these stay as they are.
    """
    who = liars.who(ids, seed=now.seed)
    honest = {
        outcome.client: {n: t for n, t in (outcome.contribution or {}).items() if n not in largest}
        for outcome in work.outcomes
        if outcome.position in who and outcome.finite
    }
    told = liars.told(honest, now, len(turns))

    def lied(outcome: Outcome) -> Outcome:
        sent = {**(outcome.contribution or {}), **told[outcome.client]}
        return replace(outcome, contribution=sent, finite=is_finite(sent))

    return replace(work, outcomes=[lied(one) if one.client in told else one for one in work.outcomes])
