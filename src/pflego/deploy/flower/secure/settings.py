"""What a deployment says of secure sums, and what cannot go with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Annotated

from pflego.algorithms.base import Algorithm
from pflego.declaration import Limits, Positive, Spelled, check_fields, declared
from pflego.errors import SettingError
from pflego.exchange.privacy import ClientPrivacy


@dataclass(frozen=True, kw_only=True)
class SecureSum:
    """Whether the server sees the sum of contributions alone, and under which conditions a site takes part in one.

    Parameters
    ----------
    on
        Send contributions, losses and test results in secure sums alone: the server sees no single one.
    clip
        The largest Euclidean norm of a contribution, all tensors together; a longer one is shortened at its site. With
        secure=true it must be given, unless privacy= gives it, and is best a few times the usual norm: numbers are
        rounded to fit its range.
    threshold
        The share of a round's clients that must stay to its end: with fewer, nothing is unmasked and the round comes to
        nothing. A single contribution stays hidden from a server that some clients help, if they are fewer than
        2 threshold - 1 of all.
    least
        The smallest number of clients that a sum is of.
    share
        The largest share of a sum that one client may count for: a client that would count for more does not take part.
    signed
        Sites sign what they send each other with their nodes' keys, and believe only keys that their operators have
        given them (peers in the node config): the server cannot invent clients, nor tell them different things.
    """

    on: Annotated[bool, Spelled("secure")] = False
    clip: Annotated[Positive | None, Spelled("secure_clip")] = None
    threshold: Annotated[float, Limits(above=0.5, most=1), Spelled("secure_threshold")] = 2 / 3
    least: Annotated[int, Limits(least=3), Spelled("secure_least")] = 3
    share: Annotated[float, Limits(above=0, below=1), Spelled("secure_share")] = 0.75
    signed: Annotated[bool, Spelled("secure_signed")] = False

    def __post_init__(self) -> None:
        check_fields(self)

    def under(self, privacy: ClientPrivacy | None) -> SecureSum:
        """Give the same with the clip settled, which is that of privacy where there is some."""
        if not self.on:
            return self
        if privacy is None:
            if self.clip is None:
                raise SettingError(
                    "secure sums need secure_clip: the largest norm of a contribution (the log of a run without them "
                    "tells the median of every round)"
                )
            return self
        if privacy.quantile is not None:
            raise SettingError(
                "with secure sums the clip of privacy= must stay, since noise is added and numbers are rounded at the "
                "sites by a clip that their operators have accepted: leave out quantile"
            )
        if self.clip not in (None, privacy.clip):
            raise SettingError(
                f"secure_clip={self.clip:g} is not the clip of privacy=, {privacy.clip:g}: leave out secure_clip"
            )
        return replace(self, clip=privacy.clip)

    @property
    def limit(self) -> float:
        """The clip of secure sums that are on, once it is settled."""
        assert self.clip is not None
        return self.clip

    def needed(self, clients: int) -> int:
        """Give how many clients of a roster must stay to the end: more than half of them, whatever is set.

        >>> [SecureSum(threshold=2 / 3).needed(clients) for clients in (3, 4, 6, 100)]
        [3, 3, 4, 67]
        """
        return max(ceil(self.threshold * clients - 1e-9), clients // 2 + 1, self.least)

    def settings(self) -> dict[str, object]:
        """Map name, as files have it, to value."""
        return {name: getattr(self, one.parameter) for name, one in declared(SecureSum).items()}

    def check_method(self, algorithm: Algorithm) -> None:
        """Refuse a method of which the server must see more than sums."""
        if not self.on:
            return
        name = algorithm.name
        if algorithm.largest:
            raise SettingError(
                f"secure sums cannot tell the largest {', '.join(sorted(algorithm.largest))} of all clients, which "
                f"{name} with auto asks for: give its rate a number"
            )
        if type(algorithm).sent_alone is not Algorithm.sent_alone:
            raise SettingError(
                f"{name} needs contributions of single clients, which secure sums hide: take another method"
            )
        if type(algorithm).answers is not Algorithm.answers:
            raise SettingError(
                f"{name} sends something of its own to single clients, and in a secure sum all must be asked the same: "
                "a server could otherwise ask in such a way that the others' contributions vanish. Take another method"
            )
