"""What a client is told of a federation and of a round, checked."""

from __future__ import annotations

from dataclasses import dataclass

from pflego_light.codec import Reader, some
from pflego_light.errors import MessageError

_LARGEST = 2.0**53
_HUGE = 1e100
_LONGEST = 80  # characters of a run's name: it is part of a file's


@dataclass(frozen=True)
class Emphasis:
    """phi'(l) = times l^power where l is above a threshold, and 0 elsewhere."""

    power: float = 0.0
    above: float | None = None
    times: float = 1.0

    def factor(self, loss: float) -> float:
        """phi'(l)."""
        if self.above is not None and loss <= self.above:
            return 0.0
        return self.times * float(loss**self.power) if self.power else self.times


@dataclass(frozen=True)
class Round:
    """What a client knows of a round."""

    number: int  # t, from 1; 0: outside of any round
    scale: float = 1.0  # I/r
    alpha: float = 1.0  # the weight of the client's loss in the federation's
    seed: int = 0
    emphasis: Emphasis | None = None
    exchange: int = 0

    @classmethod
    def read(cls, read: Reader) -> Round:
        """Take a round from facts, checked."""
        now = cls(
            number=read.whole("number", least=1),
            scale=read.finite("scale", least=1e-9, most=_LARGEST),
            alpha=read.finite("alpha", least=0, most=1),
            seed=read.one("seed", (int,)),
            emphasis=None if read.facts.get("emphasis") is None else _emphasis(read.inner("emphasis")),
            exchange=read.whole("exchange", least=0),
        )
        if now.exchange:
            raise MessageError(
                f"its exchange is {now.exchange}, and a light client's methods have one per round"
            )
        return now


def _emphasis(read: Reader) -> Emphasis:
    above = None if read.facts.get("above") is None else read.finite("above", least=-_HUGE, most=_HUGE)
    return Emphasis(
        read.finite("power", least=0, most=_LARGEST), above, read.finite("times", least=0, most=_LARGEST)
    )


@dataclass(frozen=True)
class Federation:
    """What everybody in a federation knows of it."""

    run: str
    clients: int
    samples: int
    task: str
    classes: tuple[int, ...]  # all of them; none in regression
    most_classes: int  # of one client; 0 in regression
    outputs: int
    schema: str = ""
    base: str = ""  # a digest of the weights that are frozen, and so never sent; empty: none are

    @classmethod
    def read(cls, read: Reader) -> Federation:
        """Take what is said of the federation, checked."""
        run, task = read.one("run", (str,)), read.one("task", (str,))
        if not run.isalnum() or len(run) > _LONGEST:
            raise MessageError(f"its run is called {run[:40]!r}, not by letters and digits")
        if task not in ("classification", "regression"):
            raise MessageError(f"its task is {task[:40]!r}")
        return cls(
            run,
            clients=read.whole("clients", least=1),
            samples=read.whole("samples", least=1),
            task=task,
            classes=read.numbers("classes"),
            most_classes=read.whole("most_classes", least=0),
            outputs=read.whole("outputs", least=1),
            schema=read.one("schema", (str,)),
            base=read.one("base", (str,)) if "base" in read.facts else "",
        )

    def check_base(self, own: str) -> None:
        """Refuse to work with other frozen weights than the server's."""
        if self.base and own != self.base:
            raise MessageError(
                f"the frozen weights of this kit are not the server's (digest {own[:8] or 'none'}, not "
                f"{self.base[:8]}): make it again with pflego kit"
            )

    def check(self, *, task: str, classes: tuple[int, ...], outputs: int, samples: int) -> None:
        """Refuse a federation that a client cannot be part of."""
        if task != self.task:
            raise MessageError(f"the federation does {self.task}, and these data are for {task}")
        if self.schema:
            raise MessageError(
                "the federation reads its data by a schema, and a light client's are numbers already"
            )
        if not set(classes) <= set(self.classes) or len(classes) > self.most_classes:
            raise MessageError(f"the federation's classes {some(self.classes)} are not those of these data")
        if self.task == "regression" and outputs != self.outputs:
            raise MessageError(f"the federation has {self.outputs} targets per sample, these data {outputs}")
        if self.samples < samples:
            raise MessageError(f"the federation has {self.samples} samples, fewer than this client alone")
