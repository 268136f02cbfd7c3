"""The setting every rival is timed in, and a round of it in NumPy, which theirs must agree with. Round t, client i:

    w_i <- w_t
    tau times   w_i <- w_i - beta grad l_i(w_i)
    server      w_{t+1} = sum_i N_i w_i / sum_i N_i

w is an MLP 784-200-K with ReLU, l_i the mean cross-entropy over the samples of client i, `batch` of them at a time, in
their order; tau is `epochs` times the number of batches, beta `RATE`.
Needs NumPy alone: the rivals' environments have no pflego.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

PIXELS, HIDDEN = 784, 200
RATE = 0.007
TOLERANCE = 1e-3  # of the way from w_0 to w_1; one step of fifty is 1e-2 of it


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How many of what."""

    clients: int
    samples: int
    classes: int
    batch: int
    epochs: int
    rounds: int

    @classmethod
    def from_command_line(cls, description: str | None, ways: list[str]) -> tuple[Setting, str]:
        """Read `--clients 20 --samples 600` and so on, and the `--way` the cores are to be used."""
        parser = argparse.ArgumentParser(description=description)
        for field in fields(cls):
            parser.add_argument(f"--{field.name}", type=int, required=True)
        parser.add_argument("--way", choices=ways, required=True)
        arguments = vars(parser.parse_args())
        way = str(arguments.pop("way"))
        return cls(**arguments), way

    def data(self) -> list[tuple[Array, Array]]:
        """Random images and their classes, client by client."""
        rng = np.random.default_rng(0)
        y = np.arange(self.samples) % self.classes
        return [(rng.random((self.samples, PIXELS), dtype=np.float32), y) for _ in range(self.clients)]

    def start(self) -> list[Array]:
        """w_0: weights and biases of the hidden layer, then of the output. Weights are inputs by outputs."""
        rng = np.random.default_rng(1)
        layers = [(PIXELS, HIDDEN), (HIDDEN, self.classes)]
        shapes = [(inputs, shape) for inputs, outputs in layers for shape in ((inputs, outputs), (outputs,))]
        return [(rng.uniform(-1, 1, shape) / inputs**0.5).astype(np.float32) for inputs, shape in shapes]

    def check(self, weights: list[Array]) -> None:
        """Raise unless `weights` are w_1, that is unless the first round was what it should be."""
        models = [self._descend(x, y) for x, y in self.data()]
        means = [np.mean(layers, axis=0) for layers in zip(*models, strict=True)]  # the N_i are equal
        for w_0, w_1, w in zip(self.start(), means, weights, strict=True):
            error = float(np.linalg.norm(w - w_1) / np.linalg.norm(w_1 - w_0))
            if not error < TOLERANCE:
                raise ValueError(
                    f"{self.epochs} epochs of batches of {self.batch} and an average lead elsewhere: "
                    f"weights of shape {w_0.shape} are off by {error:.1e} of the way"
                )

    def _descend(self, x: Array, y: Array) -> list[Array]:
        """w_i after tau steps from w_0."""
        w, b, v, c = self.start()
        targets = np.eye(self.classes, dtype=np.float32)[y]
        starts = range(0, len(x), self.batch)
        for part in [slice(start, start + self.batch) for _ in range(self.epochs) for start in starts]:
            inputs = x[part]
            hidden = np.maximum(inputs @ w + b, 0)
            odds = np.exp(hidden @ v + c)
            d_outputs = (odds / odds.sum(1, keepdims=True) - targets[part]) / np.float32(len(inputs))
            d_hidden = d_outputs @ v.T * (hidden > 0)
            gradients = (inputs.T @ d_hidden, d_hidden.sum(0), hidden.T @ d_outputs, d_outputs.sum(0))
            w, b, v, c = (p - np.float32(RATE) * d for p, d in zip((w, b, v, c), gradients, strict=True))
        return [w, b, v, c]
