"""The clients of PFLlib's board themselves: who holds which images of Fashion-MNIST, as that library draws them.

    PFLEGO_DATA=... python examples/pfllib_board.py --out runs/pfllib-fashion.npz
    PFLEGO_DATA=... python examples/protocols.py pfllib-fashion-dirichlet --data runs/pfllib-fashion.npz --column client

A data set's training and test images are pooled. Class by class, they are shuffled and divided among 20 clients in
shares drawn from a Dirichlet distribution, alpha = 0.1; who has an even share of all images by then gets none of it, as
in `partition="dirichlet-capped"`. That is repeated until everybody has 40. Then a quarter of each client's images, at
random, is for testing. With NumPy's old generator and a seed of 1 these are the counts that the library's own
documentation prints for MNIST; a test holds them against each other.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import train_test_split

import pflego

Indices = npt.NDArray[np.int64]
CLIENTS, ALPHA, SEED = 20, 0.1, 1
TEST_SHARE, LEAST = 0.25, 40  # of a client's images; how many it has


def holdings(labels: npt.NDArray[np.integer], draw: np.random.RandomState) -> list[Indices]:
    """Give the images of each client, class by class; drawn again until nobody has too few."""
    while True:
        held: list[list[Indices]] = [[] for _ in range(CLIENTS)]
        sizes = np.zeros(CLIENTS, np.int64)
        for c in np.unique(labels):
            images = np.flatnonzero(labels == c)
            draw.shuffle(images)
            shares = draw.dirichlet(np.full(CLIENTS, ALPHA)) * (sizes < len(labels) / CLIENTS)
            ends = (np.cumsum(shares / shares.sum()) * len(images)).astype(int)[:-1]
            for own, part in zip(held, np.split(images, ends), strict=True):
                own.append(part)
            sizes += np.diff([0, *ends, len(images)])
        if sizes.min() >= LEAST:
            return [np.concatenate(own) for own in held]


def board(x: npt.NDArray[np.uint8], y: npt.NDArray[np.integer]) -> dict[str, Any]:
    """Deal images out and set a quarter of everybody's aside: arrays of a data set whose column is called client."""
    draw = np.random.RandomState(SEED)
    halves = [
        train_test_split(own, test_size=TEST_SHARE, random_state=draw, shuffle=True)
        for own in holdings(y, draw)
    ]
    arrays: dict[str, Any] = {}
    for name, parts in zip(("train", "test"), zip(*halves, strict=True), strict=True):
        chosen = np.concatenate(parts)
        owners = np.repeat(np.arange(CLIENTS), [len(part) for part in parts])
        arrays |= {f"x_{name}": x[chosen], f"y_{name}": y[chosen], f"client_{name}": owners}
    return arrays


def guessed(federation: pflego.Federation) -> float:
    """Give the share of test images that clients get right who always name the class they have most of."""
    right = [np.asarray(one.y_test) == np.bincount(np.asarray(one.y_train)).argmax() for one in federation]
    return float(np.concatenate(right).mean())


def main() -> None:
    """Pool a data set, deal it out and write it; say how mixed clients are, beside those of other partitions."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--out", type=Path, default=Path("runs/pfllib-fashion.npz"))
    given = parser.parse_args()
    everything = pflego.load(given.data, clients=1, partition="iid")[0]  # in the order of its files
    x = np.concatenate([everything.x_train, everything.x_test])
    y = np.concatenate([everything.y_train, everything.y_test])
    arrays = board(x, y)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(given.out, **arrays)
    print(f"{given.out}: {len(arrays['y_train'])} + {len(arrays['y_test'])} images of {CLIENTS} clients")
    print(
        f"always naming one's most frequent class: {guessed(pflego.load(given.out, column='client')):.1%} right"
    )
    for partition in ("dirichlet", "dirichlet-capped"):
        other = pflego.load(given.data, clients=CLIENTS, partition=partition, alpha=ALPHA, seed=0)
        print(f'with partition="{partition}", seed 0: {guessed(other):.1%}')


if __name__ == "__main__":
    main()
