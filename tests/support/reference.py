"""The mathematics once more, in NumPy float64 and without a line of the package: what tests compare with.

A network x -> tanh(V x + v) -> W [phi, 1], with softmax cross-entropy or half the squared error, and Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import pflego
from pflego.federation.draws import Participation, cohort
from pflego.federation.roster import ClientId
from pflego.runs.history import HistoryRow
from pflego.runs.run import Run
from pflego.weights import Weights

F64 = npt.NDArray[np.float64]
Params = dict[str, F64]  # V and v of the network, W of a head


@dataclass
class Site:
    """A client's data, labels already as target rows (one-hot, or numbers)."""

    x: F64
    t: F64
    softmax: bool = True
    s: F64 | None = None  # weights of the samples; None: all alike
    mean: float = 1.0  # of the weights of the whole client

    @property
    def n(self) -> int:
        return len(self.x)

    @property
    def mass(self) -> float:
        """How much it counts by samples."""
        return self.n if self.s is None else float(self.s.sum())

    @property
    def shares(self) -> F64:
        """What each sample's loss is multiplied by: of a mini-batch, so that it is the client's loss on average."""
        return np.full(self.n, 1 / self.n) if self.s is None else self.s / self.mean / self.n

    def part(self, samples: npt.NDArray[np.int64]) -> Site:
        s = None if self.s is None else self.s[samples]
        return Site(self.x[samples], self.t[samples], self.softmax, s, self.mean)


@dataclass
class Net:
    V: F64  # (M, D)
    v: F64  # (M,)
    linear: bool = False  # without the tanh

    def phi(self, x: F64) -> F64:
        z = x @ self.V.T + self.v
        return np.asarray(z if self.linear else np.tanh(z))


def link(z: F64, softmax: bool) -> F64:
    if not softmax:
        return z
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def loss(net: Net, W: F64, site: Site) -> float:
    phi = net.phi(site.x)
    z = phi @ W[:, :-1].T + W[:, -1]
    if not site.softmax:
        return float(((z - site.t) ** 2).sum(axis=1) @ site.shares / 2)
    top = z.max(axis=1)
    logsum = np.log(np.exp(z - top[:, None]).sum(axis=1)) + top
    return float((logsum - (z * site.t).sum(axis=1)) @ site.shares)


def gradients(net: Net, W: F64, site: Site) -> tuple[F64, F64, F64]:
    """Give dV, dv and dW of the mean loss."""
    phi = net.phi(site.x)
    residual = (link(phi @ W[:, :-1].T + W[:, -1], site.softmax) - site.t) * site.shares[:, None]
    dW = np.concatenate([residual.T @ phi, residual.sum(axis=0)[:, None]], axis=1)
    pre = (residual @ W[:, :-1]) * (1 if net.linear else 1 - phi**2)
    return pre.T @ site.x, pre.sum(axis=0), dW


@dataclass
class Adam:
    """Adam as published, for one array."""

    rate: float
    eps: float = 1e-8
    m: F64 | float = 0.0
    s: F64 | float = 0.0
    t: int = 0

    def step(self, w: F64, g: F64) -> F64:
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * g
        self.s = 0.999 * self.s + 0.001 * g * g
        return np.asarray(
            w - self.rate * (self.m / (1 - 0.9**self.t)) / (np.sqrt(self.s / (1 - 0.999**self.t)) + self.eps)
        )


@dataclass
class World:
    """The same small federation twice: as the package sees it, and as NumPy does."""

    federation: pflego.Federation
    model: pflego.Model
    net: Net
    sites: list[Site]
    heads: list[F64] = field(default_factory=list)
    common: F64 | None = None  # W_0; heads are then V_i of W_0 + V_i

    @property
    def alphas(self) -> list[float]:
        total = sum(site.mass for site in self.sites)
        return [site.mass / total for site in self.sites]

    def rows(self, i: int) -> list[int]:
        """Which of W_0's rows belong to client i."""
        everybodys = self.federation.classes or [0]
        return [everybodys.index(c) for c in self.federation[i].classes.tolist()] or [0]

    def random_heads(self, size: float = 1.0) -> None:
        rng = np.random.default_rng(1)
        self.heads = [size * rng.normal(size=W.shape) for W in self.heads]


def world(
    *,
    dtype: torch.dtype = torch.float64,
    clients: int = 5,
    regression: bool = False,
    seed: int = 0,
    weighted: bool = False,
) -> World:
    """Make unequal clients: 7, 12, 17, ... samples with 2, 3, 4, 2, ... of 6 classes; weighted: some of them 0."""
    rng, drawn = np.random.default_rng(seed), np.random.default_rng(seed + 1)
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
        s = drawn.uniform(0.2, 4, size=n) * (np.arange(n) % 5 > 0) if weighted else None
        members.append(pflego.Client(f"c{i}", x, y, x[:4], y[:4], weights=s))
        mean = 1.0 if s is None else float(s.mean())
        sites.append(Site(x, t, softmax=not regression, s=s, mean=mean))
        heads.append(np.zeros((t.shape[1], M + 1)))
    net = Net(rng.normal(size=(M, D)) / 2, rng.normal(size=M) / 2)
    layer = nn.Linear(D, M, dtype=dtype)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(net.V))
        layer.bias.copy_(torch.from_numpy(net.v))
    backbone = nn.Sequential(layer, nn.Tanh())
    return World(pflego.Federation(members), pflego.Model(backbone, features=M), net, sites, heads)


def least_squares() -> tuple[pflego.Federation, F64]:
    """Five linear regressions that disagree, and the weights, bias last, that are best for all of their samples."""
    rng = np.random.default_rng(5)
    xs = [rng.normal(size=(20 + 4 * i, 3)) * (1 + i / 4) for i in range(5)]
    ys = [x @ rng.normal(size=3) + rng.normal() for x in xs]
    x, y = np.concatenate(xs), np.concatenate(ys)
    best = np.linalg.lstsq(np.concatenate([x, np.ones((len(x), 1))], axis=1), y, rcond=None)[0]
    members = [pflego.Client(f"c{i}", xs[i], ys[i]) for i in range(5)]
    return pflego.Federation(members), best


def cohorts(
    participation: Participation,
    clients: int,
    *,
    rounds: int,
    seed: int,
    ids: Sequence[ClientId] | None = None,
) -> list[list[int]]:
    """Who takes part in rounds 1, 2, ..."""
    names = range(clients) if ids is None else ids
    return [cohort(participation, names, seed=seed, number=t) for t in range(1, rounds + 1)]


@dataclass
class Trace:
    """What Algorithm 1 came to, a number a round."""

    losses: list[float | None] = field(default_factory=list)  # the participants', after their last step
    arrived: list[int] = field(default_factory=list)  # replies


def algorithm_1(
    twin: World,
    chosen: Sequence[Sequence[int]],
    *,
    r: float | None = None,
    scales: Sequence[float] = (),
    arrival: float = 1.0,
    tau: int,
    beta: float,
    rho: float,
    adam: bool = False,
    exact: bool = False,
    decay: float = 0.0,
    alphas: Sequence[float] | None = None,
    arrives: Callable[[int, int], bool] = lambda i, t: True,
    renormalise: bool = False,
) -> Trace:
    """The paper's Algorithm 1, line by line, on twin.net and twin.heads; with W_0 in twin.common, on that too.

    `chosen` are the clients of every round, r their expected number, I that of all; `scales` are 1/pi_i instead of
    I/r, and weights are divided by `arrival` too. Client i's reply in round t may
    not arrive: its head has moved all the same, and its gradient counts as zero, or the others' weights sum to one.
    """
    scales = scales or [len(twin.sites) / (r or len(twin.sites))] * len(twin.sites)
    alphas = twin.alphas if alphas is None else alphas
    optimizers: dict[str, Adam] = {}
    trace = Trace()
    for t, members in enumerate(chosen, start=1):
        value = 0.0
        replies: list[tuple[float, Params]] = []
        for i in members:
            W, site, alpha = twin.heads[i], twin.sites[i], alphas[i]
            shared = np.zeros_like(W) if twin.common is None else twin.common[twin.rows(i)]
            for _ in range(tau - 1):
                W = W - beta * (gradients(twin.net, shared + W, site)[2] + decay * W)
            dV, dv, dW = gradients(twin.net, shared + W, site)
            twin.heads[i] = W - rho * scales[i] * (alpha if exact else 1) * (dW + decay * W)
            value += alpha * loss(twin.net, shared + twin.heads[i], site)
            if arrives(i, t):
                reply = {"V": dV, "v": dv}
                if twin.common is not None:
                    reply["W_0"] = np.zeros_like(twin.common)
                    reply["W_0"][twin.rows(i)] = dW
                replies.append((scales[i] / arrival * alpha, reply))
        trace.losses.append(value / sum(alphas[i] for i in members) if members else None)
        trace.arrived.append(len(replies))
        if not replies:
            continue
        part = 1 / sum(w for w, _ in replies) if renormalise and len(replies) < len(members) else 1.0
        theta: Params = {"V": twin.net.V, "v": twin.net.v}
        if twin.common is not None:
            theta["W_0"] = twin.common
        for name, w in theta.items():
            gradient = np.asarray(sum(part * weight * reply[name] for weight, reply in replies))
            stepped = optimizers.setdefault(name, Adam(rho)).step(w, gradient) if adam else w - rho * gradient
            theta[name] = stepped
        twin.net.V, twin.net.v, twin.common = theta["V"], theta["v"], theta.get("W_0")
    return trace


Visit = Callable[[int, int, Net, F64 | None], F64]


def rounds_at_home(
    twin: World,
    chosen: Sequence[Sequence[int]],
    visit: Visit,
    *,
    r: float,
    rho: float,
    adam: bool,
    eps: float = 1e-8,
) -> None:
    """Rounds whose clients move theta and W_0 themselves and send how far, on twin.net, twin.common and twin.heads.

    `visit`, of the round, the client, and theta and W_0 as it received them, moves these two in place and gives the
    client's own head.
    """
    optimizers: dict[str, Adam] = {}
    for t, members in enumerate(chosen, start=1):
        gathered: Params = {}
        theta: Params = {"V": twin.net.V, "v": twin.net.v}
        if twin.common is not None:
            theta["W_0"] = twin.common
        for i in members:
            net = Net(twin.net.V.copy(), twin.net.v.copy())
            W_0 = None if twin.common is None else twin.common.copy()
            twin.heads[i] = visit(t, i, net, W_0)
            ended: Params = {"V": net.V, "v": net.v} | ({} if W_0 is None else {"W_0": W_0})
            weight = len(twin.sites) / r * twin.alphas[i]
            for name, w in theta.items():
                gathered[name] = gathered.get(name, np.zeros_like(w)) + weight * (w - ended[name])
        for name, move in gathered.items():
            w = theta[name]
            optimizer = optimizers.setdefault(name, Adam(rho, eps))
            theta[name] = optimizer.step(w, move) if adam else w - rho * move
        twin.net.V, twin.net.v, twin.common = theta["V"], theta["v"], theta.get("W_0")


def assert_follows(run: Run, twin: World, tolerance: float = 1e-10) -> None:
    """A run of PFLEGO has come to where Algorithm 1 has: theta, W_0 and all heads."""
    assert distance(run.shared["0.weight"], twin.net.V) < tolerance
    assert distance(run.shared["0.bias"], twin.net.v) < tolerance
    if twin.common is not None:
        assert distance(run.shared["head"], twin.common) < tolerance
    for i, head in enumerate(twin.heads):
        assert distance(run.states[f"c{i}"]["head"], head) < tolerance


def distance(ours: torch.Tensor, theirs: F64) -> float:
    """Relative distance of the two."""
    a = ours.double().numpy()
    return float(np.linalg.norm(a - theirs) / max(float(np.linalg.norm(theirs)), 1e-12))


class StopAfter(pflego.Callback):
    """Interrupts a run after a round, as Ctrl-C would."""

    def __init__(self, number: int) -> None:
        self.number = number

    def on_round(self, run: Run, row: HistoryRow) -> None:
        if row["round"] == self.number:
            raise KeyboardInterrupt


def timeless(history: list[HistoryRow]) -> list[HistoryRow]:
    """Leave out the seconds, which differ from run to run."""
    return [{key: value for key, value in row.items() if key != "seconds"} for row in history]


def known(row: HistoryRow) -> dict[str, float]:
    """Leave out what there is nothing to say of, as of a round that nobody took part in."""
    return {name: value for name, value in row.items() if value is not None}


def assert_identical(ours: Run, theirs: Run) -> None:
    """Two runs have the same history, weights and states, to the last digit."""
    assert timeless(ours.history) == timeless(theirs.history)
    assert_same_weights(ours.shared, theirs.shared)
    for client in theirs.states:
        assert_same_weights(ours.states[client], theirs.states[client])


def assert_same_weights(ours: Weights, theirs: Weights, *, within: float = 0.0) -> None:
    """The same tensors, up to a relative distance."""
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        if within:
            assert distance(tensor, theirs[name].double().numpy()) <= within, name
        else:
            assert torch.equal(tensor, theirs[name]), name
