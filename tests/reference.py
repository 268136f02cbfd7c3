"""The mathematics once more, in NumPy float64 and without a line of the package: what tests compare with.

A network x -> tanh(V x + v) -> W [phi, 1], with softmax cross-entropy or half the squared error.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import pflego
from pflego.history import HistoryRow
from pflego.run import Run
from pflego.weights import Weights

F64 = npt.NDArray[np.float64]


@dataclass
class Site:
    """A client's data, labels already as target rows (one-hot, or numbers)."""

    x: F64
    t: F64
    softmax: bool = True

    @property
    def n(self) -> int:
        return len(self.x)


@dataclass
class Net:
    V: F64  # (M, D)
    v: F64  # (M,)

    def phi(self, x: F64) -> F64:
        return np.tanh(x @ self.V.T + self.v)


def link(z: F64, softmax: bool) -> F64:
    if not softmax:
        return z
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def loss(net: Net, W: F64, site: Site) -> float:
    phi = net.phi(site.x)
    z = phi @ W[:, :-1].T + W[:, -1]
    if not site.softmax:
        return float(((z - site.t) ** 2).sum(axis=1).mean() / 2)
    top = z.max(axis=1)
    logsum = np.log(np.exp(z - top[:, None]).sum(axis=1)) + top
    return float((logsum - (z * site.t).sum(axis=1)).mean())


def gradients(net: Net, W: F64, site: Site) -> tuple[F64, F64, F64]:
    """Give dV, dv and dW of the mean loss."""
    phi = net.phi(site.x)
    residual = (link(phi @ W[:, :-1].T + W[:, -1], site.softmax) - site.t) / site.n
    dW = np.concatenate([residual.T @ phi, residual.sum(axis=0)[:, None]], axis=1)
    pre = (residual @ W[:, :-1]) * (1 - phi**2)
    return pre.T @ site.x, pre.sum(axis=0), dW


@dataclass
class Adam:
    """Adam as published, for one array."""

    rate: float
    m: F64 | float = 0.0
    s: F64 | float = 0.0
    t: int = 0

    def step(self, w: F64, g: F64) -> F64:
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * g
        self.s = 0.999 * self.s + 0.001 * g * g
        return np.asarray(
            w - self.rate * (self.m / (1 - 0.9**self.t)) / (np.sqrt(self.s / (1 - 0.999**self.t)) + 1e-8)
        )


@dataclass
class World:
    """The same small federation twice: as the package sees it, and as NumPy does."""

    federation: pflego.Federation
    model: pflego.Model
    net: Net
    sites: list[Site]
    heads: list[F64] = field(default_factory=list)

    @property
    def alphas(self) -> list[float]:
        total = sum(site.n for site in self.sites)
        return [site.n / total for site in self.sites]


def world(
    *, dtype: torch.dtype = torch.float64, clients: int = 5, regression: bool = False, seed: int = 0
) -> World:
    """Make unequal clients: 7, 12, 17, ... samples with 2, 3, 4, 2, ... of 6 classes."""
    rng = np.random.default_rng(seed)
    D, M = 6, 4
    members, sites, heads = [], [], []
    for i in range(clients):
        n = 7 + 5 * i
        x = rng.normal(size=(n, D))
        if regression:
            y: npt.NDArray[np.generic] = rng.normal(size=n)
            t = np.asarray(y, dtype=np.float64)[:, None]
        else:
            classes = np.sort(rng.choice(6, 2 + i % 3, replace=False))
            y = classes[
                np.concatenate([np.arange(len(classes)), rng.integers(len(classes), size=n - len(classes))])
            ]
            t = (y[:, None] == classes).astype(float)
        members.append(pflego.Client(f"c{i}", x, y, x[:4], y[:4]))
        sites.append(Site(x, t, softmax=not regression))
        heads.append(np.zeros((t.shape[1], M + 1)))
    net = Net(rng.normal(size=(M, D)) / 2, rng.normal(size=M) / 2)
    layer = nn.Linear(D, M, dtype=dtype)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(net.V))
        layer.bias.copy_(torch.from_numpy(net.v))
    backbone = nn.Sequential(layer, nn.Tanh())
    return World(pflego.Federation(members), pflego.Model(backbone, features=M), net, sites, heads)


def distance(ours: torch.Tensor, theirs: F64) -> float:
    """Relative distance of the two."""
    a = ours.double().numpy()
    return float(np.linalg.norm(a - theirs) / max(float(np.linalg.norm(theirs)), 1e-12))


def timeless(history: list[HistoryRow]) -> list[HistoryRow]:
    """Leave out the seconds, which differ from run to run."""
    return [{key: value for key, value in row.items() if key != "seconds"} for row in history]


def assert_identical(ours: Run, theirs: Run) -> None:
    """Two runs have the same history, weights and states, to the last digit."""
    assert timeless(ours.history) == timeless(theirs.history)
    assert_same_weights(ours.shared, theirs.shared)
    for id in theirs.states:
        assert_same_weights(ours.states[id], theirs.states[id])


def assert_same_weights(ours: Weights, theirs: Weights, *, within: float = 0.0) -> None:
    """The same tensors, up to a relative distance."""
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        if within:
            assert distance(tensor, theirs[name].double().numpy()) <= within, name
        else:
            assert torch.equal(tensor, theirs[name]), name
