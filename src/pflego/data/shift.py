"""Differences between clients other than who holds which classes: what inputs look like, what labels mean, noise.

A shift is a function of a client's group. Groups are drawn from the seed, as even in size as can be; without a number
of groups every client is one of its own. Training and test samples are shifted alike; noise is in training labels
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from pflego.data.blocks import Array
from pflego.data.partition import Indices
from pflego.errors import DataError
from pflego.federation.roster import ClientId
from pflego.randomness import numpy_generator

ShiftName: TypeAlias = Literal["rotation", "permutation", "inversion", "contrast", "labels"]
Share: TypeAlias = tuple[Array, Array, Array, Array]  # a client's x_train, y_train, x_test, y_test

_FAINTEST = 0.2  # the contrast of the last group, of 1


@dataclass(frozen=True)
class Shift:
    """What makes clients different, as `pflego.load` explains it; None where it is not given."""

    kind: ShiftName | None = None
    groups: int | None = None
    label_noise: float | None = None

    def __post_init__(self) -> None:
        if self.groups is not None and self.kind is None:
            raise DataError("groups is for a shift between clients: say shift=..., or leave it out")

    @property
    def settings(self) -> dict[str, object]:
        """What was asked for."""
        given = {"shift": self.kind, "groups": self.groups, "label_noise": self.label_noise}
        return {name: value for name, value in given.items() if value is not None}

    def apply(
        self, ids: Sequence[ClientId], shares: Sequence[Share], picture: Sequence[int], *, seed: int
    ) -> list[Share]:
        """Shift every client's samples; `picture` is the shape of a sample as an image, empty where it is none."""
        if not self.settings:
            return list(shares)
        classes = np.unique(np.concatenate([share[1] for share in shares]))
        if (self.kind == "labels" or self.label_noise) and classes.dtype.kind == "f":
            raise DataError(
                "a shift of labels and label_noise are for classes: leave them out of a regression"
            )
        if self.kind not in (None, "labels") and not picture:
            raise DataError(f"shift={self.kind!r} is for images: take 'labels', or leave it out")
        count = len(ids) if self.groups is None else self.groups
        groups = draw_groups(len(ids), count, seed=seed)
        shifted = []
        for client_id, group, (x_train, y_train, x_test, y_test) in zip(ids, groups, shares, strict=True):
            if self.kind == "labels":
                y_train, y_test = (rename(y, classes, int(group), seed=seed) for y in (y_train, y_test))
            elif self.kind is not None:
                x_train, x_test = (
                    change(self.kind, x, int(group), count, picture, seed=seed) for x in (x_train, x_test)
                )
            if self.label_noise:
                y_train = confuse(y_train, self.label_noise, seed=seed, client=client_id)
            shifted.append((x_train, y_train, x_test, y_test))
        return shifted


def draw_groups(clients: int, groups: int, *, seed: int) -> Indices:
    """Draw every client's group, 0 to groups - 1, so that no group has two members more than another.

    >>> sorted(draw_groups(5, 2, seed=0).tolist())
    [0, 0, 0, 1, 1]
    """
    if groups > clients:
        raise DataError(f"{clients} clients cannot be in {groups} groups: take fewer, or more clients")
    return numpy_generator(seed, "groups").permutation(np.arange(clients) % groups)


def change(kind: ShiftName, x: Array, group: int, groups: int, picture: Sequence[int], *, seed: int) -> Array:
    """Change images as a group's are: the first group's stay as they are, but for their pixels' order.

    rotation: by group / groups of a full turn. permutation: pixels in an order drawn for the group. inversion: bright
    for dark in every other group. contrast: from 1 in the first group to 0.2 in the last, around medium grey.
    """
    images = np.asarray(x).reshape(len(x), *picture)
    top = 255 if x.dtype == np.uint8 else 1
    match kind:
        case "rotation":
            changed = _rotated(images, 360 * group / groups)
        case "permutation":
            order = numpy_generator(seed, "permutation", client=group).permutation(picture[0] * picture[1])
            changed = images.reshape(len(x), len(order), -1)[:, order]
        case "inversion":
            changed = (top - images).astype(x.dtype) if group % 2 else images
        case _:
            factor = 1 - (1 - _FAINTEST) * group / max(1, groups - 1)
            changed = top / 2 + factor * (images.astype(np.float64) - top / 2)
            changed = (np.round(changed) if top == 255 else changed).astype(x.dtype)
    return np.ascontiguousarray(changed).reshape(x.shape)


def rename(y: Array, classes: Array, group: int, *, seed: int) -> Array:
    """Exchange the names of classes as a group does; the first group keeps them."""
    if group == 0:
        return y
    drawn = numpy_generator(seed, "labels", client=group).permutation(len(classes))
    places = np.minimum(np.searchsorted(classes, y), len(classes) - 1)
    return np.where(classes[places] == y, classes[drawn][places], y).astype(y.dtype)


def confuse(y: Array, share: float, *, seed: int, client: ClientId) -> Array:
    """Replace labels, each with a probability, by another class of the same client."""
    generator = numpy_generator(seed, "label noise", client=client)
    classes, places = np.unique(y, return_inverse=True)
    if len(classes) == 1:
        return y
    further = generator.integers(1, len(classes), size=len(y))
    wrong = generator.random(len(y)) < share
    return np.asarray(classes[np.where(wrong, (places + further) % len(classes), places)])


def _rotated(images: Array, degrees: float) -> Array:
    """Turn images counter-clockwise: exactly by quarters of a turn, by linear interpolation otherwise."""
    height, width = images.shape[1:3]
    quarters = degrees / 90
    if quarters.is_integer() and (height == width or quarters % 2 == 0):
        return np.rot90(images, int(quarters), axes=(1, 2))
    from scipy.ndimage import rotate

    turned = rotate(images, degrees, axes=(2, 1), reshape=False, order=1, mode="constant", cval=0)
    return np.asarray(turned)
