"""Differential privacy of a secure sum: every site adds a share of the noise, so that nobody ever has the exact sum.

    x_i = w_i c_i min(1, C / |c_i|) + N(0, w^2 z^2 C^2 / t)         w the largest weight in the sum

t is the number of clients that must stay, and no site helps to unmask a sum of fewer. So every sum that is unmasked has
m >= t shares, and with them noise of deviation sqrt(m / t) w z C: at least that of privacy.py, whose accountant counts
on w z C. Who knows the shares of k sites, since these are its own, still faces sqrt((t - k) / t) of it.

Shares come from the system's generator. Nothing else may draw them: who knows a seed can take the noise off.
"""

from __future__ import annotations

from math import sqrt
from secrets import token_bytes

from pflego.deploy.flower.secure.fixed_point import Floats, Layout
from pflego.deploy.flower.secure.roster import Roster
from pflego.deploy.flower.secure.settings import SecureSum
from pflego.exchange.privacy import ClientPrivacy, gaussian

_KEY = 32  # bytes of the system's generator
_REACH = 10.0  # deviations that a share stays within: of `gaussian` no number is beyond 8.7


def share_deviation(roster: Roster, rules: SecureSum, privacy: ClientPrivacy | None) -> float:
    """Give the standard deviation of one site's share of the noise; 0 without privacy.

    It goes by the largest weight of all: a site that counts for less makes no less noise for those who count for more.
    """
    if privacy is None or roster.session.kind != "train":
        return 0.0
    heaviest = max(entry.weight for entry in roster.entries)
    return heaviest * privacy.noise * privacy.clip / sqrt(rules.needed(len(roster.entries)))


def draw_share(count: int, deviation: float) -> Floats:
    """Draw a site's share for as many numbers, new in every call and a function of nothing that is kept."""
    normal: Floats = gaussian(token_bytes(_KEY), ["share of the noise"], (count,)).numpy()
    return deviation * normal


def layout_of(roster: Roster, rules: SecureSum, values: int, figures: int, *, deviation: float) -> Layout:
    """Give how a sum's numbers lie in messages, with room for everybody's share of the noise."""
    parties = len(roster.entries)
    spread = parties * _REACH * deviation
    return Layout(values, figures, parties, roster.weight * rules.limit, spread)
