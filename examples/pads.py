"""The people of the demo: who has drawn what on their pen pad, and what each sign stands for there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

import pflego

PEOPLE, DRAWINGS, SIGNS = 20, 40, 10
PER_SIGN = (1, 2, 5, 10, 20)  # drawings of each sign that a newcomer brings

Integers = npt.NDArray[np.int64]


@dataclass
class Pads:
    """Drawings of ten signs (scikit-learn's handwritten digits), dealt out by a seed."""

    drawings: npt.NDArray[np.float32]  # (1797, 64)
    signs: Integers  # (1797,), 0 to 9
    order: Integers  # the first are dealt out; nobody trains on the rest
    draw: np.random.Generator

    @classmethod
    def of(cls, seed: int) -> Pads:
        """Shuffle the drawings."""
        digits = pflego.load("digits", clients=1, partition="iid")[0]
        drawings = torch.cat([digits.x_train, digits.x_test]).numpy()
        signs = torch.cat([digits.y_train, digits.y_test]).numpy()
        draw = np.random.default_rng(seed)
        return cls(drawings, signs, draw.permutation(len(signs)), draw)

    @property
    def unseen(self) -> Integers:
        """Which drawings are nobody's: for tests, and for those who come later."""
        return self.order[PEOPLE * DRAWINGS :]

    def person(self, name: str, own: Integers, test: Integers, shortcuts: Integers) -> pflego.Client:
        """Make a client of somebody's drawings and the action that each stands for on their pad."""
        actions = shortcuts[self.signs]
        return pflego.Client(name, self.drawings[own], actions[own], self.drawings[test], actions[test])

    def federation(self) -> pflego.Federation:
        """Give everybody forty drawings and shortcuts of their own."""
        dealt = np.split(self.order[: PEOPLE * DRAWINGS], PEOPLE)
        return pflego.Federation(
            [
                self.person(f"person {number}", own, self.unseen, self.draw.permutation(SIGNS))
                for number, own in enumerate(dealt, start=1)
            ]
        )

    def newcomer(self, name: str) -> dict[int, pflego.Client]:
        """Make somebody new, with more and more drawings of each sign; the test is always the same."""
        shuffled, shortcuts = self.draw.permutation(self.unseen), self.draw.permutation(SIGNS)
        by_sign = [shuffled[self.signs[shuffled] == sign] for sign in range(SIGNS)]
        test = np.concatenate([drawn[max(PER_SIGN) :] for drawn in by_sign])
        return {
            count: self.person(name, np.concatenate([drawn[:count] for drawn in by_sign]), test, shortcuts)
            for count in PER_SIGN
        }
