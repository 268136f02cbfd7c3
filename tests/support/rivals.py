"""PFLEGO's rivals in NumPy float64: what a client of each does, and rounds of them on unequal clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import pflego
from pflego.declaration import declared
from pflego.randomness import torch_generator
from pflego.runs.run import Run
from pflego.weights import Weights
from tests.support.reference import F64, Adam, Net, Params, Site, World, distance, gradients, link, loss

Indices = npt.NDArray[np.int64]
Slopes = Callable[[F64, Indices], F64]  # of features and whose they are: a term's gradient in them
ALONE = ("W_i", "h", "variance")  # what the server does not combine
NAMES = {"0.weight": "V", "0.bias": "v", "head": "W"}  # the package's, and those here
NAMES |= {
    f"{prefix}/{name}": f"{prefix} {ours}"
    for prefix in ("control", "slope", "own", "old", "mixing")
    for name, ours in NAMES.items()
}
NAMES |= {
    "mixing": "a",
    "shift": "b",
    "mean/features": "m",
    "mean/known": "k",
    "previous/0.weight": "Vp",
    "previous/0.bias": "vp",
    "class/means": "P",
    "class/known": "k",
}


def grad(w: Params, site: Site) -> Params:
    return dict(zip(("V", "v", "W"), gradients(Net(w["V"], w["v"]), w["W"], site), strict=True))


def steps(
    w: Params,
    site: Site,
    count: int,
    *,
    rate: float,
    names: str = "VvW",
    momentum: float = 0.0,
    anchor: Params | None = None,
    mu: float = 0.0,
    decay: float = 0.0,
    slope: Params | None = None,
    batches: Sequence[Indices] | None = None,
    on_features: Slopes | None = None,
) -> Params:
    """Gradient descent on l_i(w) + decay/2 |w|^2 + mu/2 |w - anchor|^2 + <slope, w>, in the parameters named.

    on_features gives the gradient in phi of a term that is added.
    """
    velocity = {name: np.zeros_like(w[name]) for name in names}
    for k in range(count):
        samples = np.arange(site.n) if batches is None else batches[k]
        g = grad(w, site.part(samples))
        if on_features is not None:
            phi = np.tanh(site.x[samples] @ w["V"].T + w["v"])
            pre = on_features(phi, samples) * (1 - phi**2)
            g |= {"V": g["V"] + pre.T @ site.x[samples], "v": g["v"] + pre.sum(axis=0)}
        for name in names:
            total = g[name] + decay * w[name] + (mu * (w[name] - anchor[name]) if anchor else 0)
            velocity[name] = momentum * velocity[name] + total + (slope[name] if slope else 0)
        w = {name: w[name] - rate * velocity[name] if name in names else w[name] for name in w}
    return w


def batches(
    seed: int, t: int, i: int, site: Site, size: int, count: int, purpose: str = "batches"
) -> list[Indices]:
    """The samples of client i's steps in round t: shuffled anew whenever all have been used."""
    generator = torch_generator(seed, purpose, round_number=t, client=f"c{i}")
    drawn: list[Indices] = []
    while len(drawn) < count:
        order = torch.randperm(site.n, generator=generator).numpy()
        drawn += [order[start : start + size] for start in range(0, site.n, size)]
    return drawn[:count]


def of_kind(kind: type[pflego.Algorithm], **settings: Any) -> pflego.Algorithm:
    """Make a method with those of some settings that it has: FedSGD has no number of steps."""
    return kind(**{name: value for name, value in settings.items() if name in declared(kind)})


Combine = Callable[[Sequence[Params], Sequence[float]], Params]


def add_up(sent: Sequence[Params], weights: Sequence[float]) -> Params:
    """sum_i w_i c_i."""
    return {
        name: np.asarray(sum(w * one[name] for w, one in zip(weights, sent, strict=True))) for name in sent[0]
    }


@dataclass
class Simulation:
    """Shared parameters, and personal ones of every client."""

    sites: list[Site]
    shared: Params
    own: list[Params]
    counts: Sequence[float] = ()  # how much clients count; none: by their samples
    adams: dict[str, Adam] = field(default_factory=dict)
    memory: Params = field(default_factory=dict)  # of the server
    round: int = 0  # the one that is played
    exchange: int = 0  # of the round, from 0
    asked: float = 1.0  # sum_i a_i of those who were asked
    server: Server | None = None  # gives what is shared next, of what was combined; None: it adds
    alone: dict[int, Params] = field(
        default_factory=dict
    )  # what clients sent and the server does not combine
    rows: Sequence[Sequence[int]] = ()  # of each client: its classes among those of all
    heads: dict[int, F64] = field(default_factory=dict)  # that the server has for single clients

    def weights(self, members: Sequence[int], scale: float | None) -> dict[int, float]:
        """w_i: shares that sum to one over the members, or with a scale I/r, shares of all clients times it."""
        counts = self.counts or [site.mass for site in self.sites]
        total = sum(counts[i] for i in members) if scale is None else sum(counts) / scale
        return {i: counts[i] / total for i in members}

    def play(
        self,
        client: Client,
        chosen: Sequence[Sequence[int]],
        *,
        server_lr: float | None = None,
        server: Server | None = None,
        exchanges: int = 1,
        scale: float | None = None,
        arrives: Callable[[int, int], bool] = lambda i, t: True,
        renormalise: bool = False,
        transform: Callable[[Params], Params] = lambda sent: sent,
        combine: Combine = add_up,
    ) -> list[int]:
        """Combine what clients send, round by round; give how many replies arrived.

        Without server_lr, how far models went is sent and added to the shared one. With it, gradients are sent and the
        server takes a step of Adam; with a server, it does what that says with what clients send. A reply that is lost
        counts as nothing, or the weights of those that arrived are scaled to sum to one.
        """
        arrived = []
        for t, members in enumerate(chosen, start=1):
            self.round, self.asked = t, sum(self.weights(members, 1.0).values())
            weights = self.weights(members, scale)
            for self.exchange in range(exchanges):
                work = {i: client(self, i) for i in members}
                there = [i for i in members if arrives(i, t)]
                if there:
                    lost = len(there) < len(members)
                    part = 1 / sum(weights[i] for i in there) if renormalise and lost else 1.0
                    raw = server_lr is not None or server is not None
                    sent = [transform(work[i] if raw else self.moved(work[i])) for i in there]
                    self.alone = {
                        i: {name: a for name, a in one.items() if name in ALONE}
                        for i, one in zip(there, sent, strict=True)
                    }
                    sent = [{name: a for name, a in one.items() if name not in ALONE} for one in sent]
                    combined = combine(sent, [part * weights[i] for i in there])
                    step = server or self.server
                    self.shared = self._stepped(combined, server_lr) if step is None else step(self, combined)
            arrived.append(len(there))
        return arrived

    def moved(self, work: Params) -> Params:
        return {name: w - self.shared[name] if name in self.shared else w for name, w in work.items()}

    def _stepped(self, combined: Params, server_lr: float | None) -> Params:
        if server_lr is None:
            return {**self.shared, **{name: self.shared[name] + moved for name, moved in combined.items()}}
        adams = {name: self.adams.setdefault(name, Adam(server_lr)) for name in combined}
        return {**self.shared, **{n: adams[n].step(self.shared[n], g) for n, g in combined.items()}}


Client = Callable[[Simulation, int], Params]  # moves own[i], gives what is sent
Server = Callable[[Simulation, Params], Params]  # gives the shared parameters, from what was combined


def fedavg(tau: int, beta: float, *, mu: float = 0.0) -> Client:
    """And FedProx, with mu."""
    return lambda s, i: steps(s.shared, s.sites[i], tau, rate=beta, anchor=s.shared, mu=mu)


def fedper(tau: int, beta: float) -> Client:
    def client(s: Simulation, i: int) -> Params:
        w = steps({**s.shared, **s.own[i]}, s.sites[i], tau, rate=beta)
        s.own[i] = {"W": w["W"]}
        return {"V": w["V"], "v": w["v"]}

    return client


def fedrep(tau: int, beta: float, *, body: int, momentum: float = 0.0) -> Client:
    def client(s: Simulation, i: int) -> Params:
        w = {**s.shared, **s.own[i]}
        w = steps(w, s.sites[i], tau - body, rate=beta, names="W", momentum=momentum)
        w = steps(w, s.sites[i], body, rate=beta, names="Vv", momentum=momentum)
        s.own[i] = {"W": w["W"]}
        return {"V": w["V"], "v": w["v"]}

    return client


def fedbabu(tau: int, beta: float, *, momentum: float) -> Client:
    def client(s: Simulation, i: int) -> Params:
        w = steps(s.shared, s.sites[i], tau, rate=beta, names="Vv", momentum=momentum)
        return {"V": w["V"], "v": w["v"]}

    return client


def ditto(tau: int, beta: float, *, mu: float, global_lr: float | None = None) -> Client:
    def client(s: Simulation, i: int) -> Params:
        s.own[i] = steps(s.own[i], s.sites[i], tau, rate=beta, anchor=s.shared, mu=mu)
        return steps(s.shared, s.sites[i], tau, rate=global_lr or beta)

    return client


def fedrecon(tau: int, beta: float, *, reset: bool = False) -> Client:
    def client(s: Simulation, i: int) -> Params:
        first = {"W": np.zeros_like(s.own[i]["W"])} if reset else s.own[i]
        w = steps({**s.shared, **first}, s.sites[i], tau, rate=beta, names="W")
        s.own[i] = {"W": w["W"]}
        g = grad(w, s.sites[i])
        return {"V": g["V"], "v": g["v"]}

    return client


def pflego_client(tau: int, beta: float, *, rho: float, scale: float) -> Client:
    """Algorithm 1 with the head's last step as in the paper's text."""

    def client(s: Simulation, i: int) -> Params:
        w = steps({**s.shared, **s.own[i]}, s.sites[i], tau - 1, rate=beta, names="W")
        g = grad(w, s.sites[i])
        s.own[i] = {"W": w["W"] - rho * scale * g["W"]}
        return {"V": g["V"], "v": g["v"]}

    return client


def one_gradient(s: Simulation, i: int) -> Params:
    """FedSGD's client."""
    return grad(s.shared, s.sites[i])


def gradient_step(rate: float) -> Server:
    return lambda s, g: {name: w - rate * g[name] for name, w in s.shared.items()}


def fedopt(kind: str, rate: float, *, beta1: float = 0.9, beta2: float = 0.99, eps: float = 1e-3) -> Server:
    """Algorithm 2 of Reddi et al., on differences; momentum as Hsu et al. have it."""

    def server(s: Simulation, difference: Params) -> Params:
        moved = {}
        for name, w in s.shared.items():
            d = difference[name]
            m = (
                beta1 * s.memory.get(f"m {name}", np.zeros_like(w))
                + (1 if kind == "momentum" else 1 - beta1) * d
            )
            v = s.memory.get(f"v {name}", np.full_like(w, eps * eps))
            if kind == "adagrad":
                v = v + d * d
            elif kind == "yogi":
                v = np.where(v > d * d, v - (1 - beta2) * d * d, v + (1 - beta2) * d * d)
            else:
                v = beta2 * v + (1 - beta2) * d * d
            s.memory |= {f"m {name}": m, f"v {name}": v}
            moved[name] = w + rate * (m if kind == "momentum" else m / (np.sqrt(v) + eps))
        return moved

    return server


def differences(client: Client) -> Client:
    """Give how far models went, for a server that does something of its own with it."""
    return lambda s, i: s.moved(client(s, i))


def per_step(moved: Params, length: float) -> Params:
    """What FedNova sends of a model's way, and of how many steps' rates it took."""
    return {**{name: d / length for name, d in moved.items()}, "length": np.array([length, 1.0])}


def mean_length(s: Simulation, sent: Params) -> Params:
    """FedNova's server."""
    length, count = sent["length"]
    return {name: w + length / count * sent[name] for name, w in s.shared.items()}


def feddane(tau: int, beta: float, *, mu: float) -> Client:
    def client(s: Simulation, i: int) -> Params:
        own = grad(s.shared, s.sites[i])
        if s.exchange == 0:
            return own
        slope = {name: s.memory.get(name, 0 * g) - g for name, g in own.items()}
        return s.moved(steps(s.shared, s.sites[i], tau, rate=beta, anchor=s.shared, mu=mu, slope=slope))

    return client


def gradient_then_differences(s: Simulation, sent: Params) -> Params:
    """FedDANE's server."""
    if s.exchange == 0:
        s.memory = sent
        return s.shared
    return {name: w + sent[name] for name, w in s.shared.items()}


def complex_gradient(value: Callable[[Params], Any], w: Params) -> Params:
    """Differentiate by complex steps, to the last digits: f(w + ih) / h has the derivative for its imaginary part."""
    size = 1e-30
    found: Params = {}
    for name, array in w.items():
        found[name] = np.zeros_like(array)
        for place in np.ndindex(array.shape):
            moved = {other: array.astype(complex) for other, array in w.items()}
            moved[name][place] += 1j * size
            found[name][place] = np.imag(value(moved)) / size
    return found


def complex_loss(w: Params, site: Site) -> Any:
    """The mean cross-entropy, also of complex parameters."""
    z = np.tanh(site.x @ w["V"].T + w["v"]) @ w["W"][:, :-1].T + w["W"][:, -1]
    return (np.log(np.exp(z).sum(axis=1)) - (z * site.t).sum(axis=1)) @ site.shares


def uga(tau: int, beta: float, **how: Any) -> Client:
    """Its loss after its steps, differentiated as it stands: no Hessian is written down."""

    def client(s: Simulation, i: int) -> Params:
        site = s.sites[i]
        return complex_gradient(
            lambda w: complex_loss(steps(w, site, tau - 1, rate=beta, **how), site), s.shared
        )

    return client


def perfedavg(
    tau: int, beta: float, *, inner: float, seed: int, delta: float | None = 1e-3, size: int | None = None
) -> Client:
    """Disjoint batches of a permutation; with delta the curvature too, from a third."""
    parts = 2 if delta is None else 3

    def client(s: Simulation, i: int) -> Params:
        w, site = s.shared, s.sites[i]
        generator = torch_generator(seed, "batches", round_number=s.round, client=f"c{i}")
        for _ in range(tau):
            order = torch.randperm(site.n, generator=generator).numpy()
            some = [site.part(b) for b in np.array_split(order[: size and parts * size], parts)]
            g = grad(w, some[0])
            d = grad({name: w[name] - inner * g[name] for name in w}, some[1])
            h = {name: np.zeros_like(array) for name, array in w.items()}
            if delta is not None:
                ahead = grad({name: w[name] + delta * d[name] for name in w}, some[2])
                behind = grad({name: w[name] - delta * d[name] for name in w}, some[2])
                h = {name: (ahead[name] - behind[name]) / (2 * delta) for name in w}
            w = {name: w[name] - beta * (d[name] - inner * h[name]) for name in w}
        return w

    return client


def pfedme(
    times: int,
    beta: float,
    *,
    inner: int,
    mu: float,
    eta: float,
    drawn: Callable[[Simulation, int], list[Indices]] | None = None,
    **how: Any,
) -> Client:
    def client(s: Simulation, i: int) -> Params:
        w = theta = s.shared
        chosen = drawn(s, i) if drawn else None
        for r in range(times if chosen is None else len(chosen)):
            same = None if chosen is None else [chosen[r]] * inner
            theta = steps(theta, s.sites[i], inner, rate=beta, anchor=w, mu=mu, batches=same, **how)
            w = {name: w[name] - eta * mu * (w[name] - theta[name]) for name in w}
        s.own[i] = theta
        return w

    return client


def alone(tau: int, beta: float) -> Client:
    def client(s: Simulation, i: int) -> Params:
        s.own[i] = steps(s.own[i], s.sites[i], tau, rate=beta)
        return {}

    return client


def part(weights: Params, prefix: str) -> Params:
    """What is called so, without the prefix."""
    return {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}


def called(prefix: str, weights: Params) -> Params:
    return {prefix + name: w for name, w in weights.items()}


def scaffold(tau: int, beta: float) -> Client:
    """y_i + c + (c_i' - c_i) are given: what is sent is their difference to x and c."""

    def client(s: Simulation, i: int) -> Params:
        x = {name: s.shared[name] for name in "VvW"}
        c, c_i = part(s.shared, "control "), part(s.own[i], "control ")
        y = steps(x, s.sites[i], tau, rate=beta, slope={name: c[name] - c_i[name] for name in c})
        new = {name: c_i[name] - c[name] + (x[name] - y[name]) / (tau * beta) for name in x}
        s.own[i] = called("control ", new)
        return {**y, **called("control ", {name: c[name] + new[name] - c_i[name] for name in c})}

    return client


def scaffold_server(server_lr: float = 1.0) -> Server:
    def step(s: Simulation, combined: Params) -> Params:
        return {
            name: w + (s.asked if name.startswith("control") else server_lr) * combined[name]
            for name, w in s.shared.items()
        }

    return step


def controlled(twin: World, sites: list[Site]) -> Simulation:
    """One model for everybody, and control variates of zeros."""
    simulation = shared_head(twin, sites)
    zeros = called("control ", {name: np.zeros_like(w) for name, w in simulation.shared.items()})
    return Simulation(sites, {**simulation.shared, **zeros}, [dict(zeros) for _ in sites])


def feddyn(tau: int, beta: float, *, mu: float) -> Client:
    def client(s: Simulation, i: int) -> Params:
        g = part(s.own[i], "slope ")
        w = steps(
            s.shared,
            s.sites[i],
            tau,
            rate=beta,
            anchor=s.shared,
            mu=mu,
            slope={name: -g[name] for name in g},
        )
        s.own[i] = called("slope ", {name: g[name] - mu * (w[name] - s.shared[name]) for name in g})
        return w

    return client


def feddyn_server(mu: float) -> Server:
    def step(s: Simulation, combined: Params) -> Params:
        for name, w in s.shared.items():
            s.memory[name] = s.memory.get(name, np.zeros_like(w)) - mu * s.asked * combined[name]
        return {name: w + combined[name] - s.memory[name] / mu for name, w in s.shared.items()}

    return step


def sloped(twin: World, sites: list[Site]) -> Simulation:
    """One model for everybody, and a slope of zeros for each."""
    simulation = shared_head(twin, sites)
    zeros = called("slope ", {name: np.zeros_like(w) for name, w in simulation.shared.items()})
    return Simulation(sites, simulation.shared, [dict(zeros) for _ in sites])


def apfl(tau: int, beta: float, *, learn: bool = True) -> Client:
    def client(s: Simulation, i: int) -> Params:
        w, v, a, site = s.shared, part(s.own[i], "own "), s.own[i]["a"], s.sites[i]
        for k in range(tau):
            at_mixture = grad({name: a * v[name] + (1 - a) * w[name] for name in w}, site)
            alone = grad(w, site)
            slope = sum((at_mixture[name] * (v[name] - w[name])).sum() for name in w)
            v, w = (
                {name: v[name] - beta * a * at_mixture[name] for name in v},
                {name: w[name] - beta * alone[name] for name in w},
            )
            if learn and k == 0:
                a = np.clip(a - beta * slope, 0, 1)
        s.own[i] = {**called("own ", v), "a": a}
        return w

    return client


def mixtures(twin: World, sites: list[Site], a: float = 0.5) -> Simulation:
    """One model for everybody, and for each the same once more with a share."""
    simulation = shared_head(twin, sites)
    first = {**called("own ", simulation.shared), "a": np.asarray(a)}
    return Simulation(sites, simulation.shared, [dict(first) for _ in sites])


def lgfedavg(tau: int, beta: float) -> Client:
    def client(s: Simulation, i: int) -> Params:
        w = steps({**s.shared, **s.own[i]}, s.sites[i], tau, rate=beta)
        s.own[i] = {"V": w["V"], "v": w["v"]}
        return {"W": w["W"]}

    return client


def rod_gradients(w: Params, P: F64, site: Site, counts: F64) -> Params:
    """Of the balanced loss in V, v and W, of the personal one in P; counts are n_c of all of the client's samples."""
    phi = Net(w["V"], w["v"]).phi(site.x)
    ones = np.concatenate([phi, np.ones((site.n, 1))], axis=1)
    with np.errstate(divide="ignore"):
        prior = np.log(counts) if site.softmax else 0.0
    generic = (link(ones @ w["W"].T + prior, site.softmax) - site.t) / site.n
    personal = (link(ones @ w["W"].T + ones @ P.T, site.softmax) - site.t) / site.n
    pre = (generic @ w["W"][:, :-1]) * (1 - phi**2)
    return {"V": pre.T @ site.x, "v": pre.sum(axis=0), "W": generic.T @ ones, "own W": personal.T @ ones}


def fedrod(tau: int, beta: float) -> Client:
    def client(s: Simulation, i: int) -> Params:
        site, w = s.sites[i], {**s.shared, **s.own[i]}
        for _ in range(tau):
            g = rod_gradients(w, w["own W"], site, site.t.sum(axis=0))
            w = {name: w[name] - beta * g[name] for name in w}
        s.own[i] = {"own W": w.pop("own W")}
        return w

    return client


def two_heads(twin: World, sites: list[Site]) -> Simulation:
    """One model for everybody, and a head of zeros beside its own for each."""
    simulation = shared_head(twin, sites)
    own: list[Params] = [{"own W": np.zeros_like(simulation.shared["W"])} for _ in sites]
    return Simulation(sites, simulation.shared, own)


def fedala(
    tau: int,
    beta: float,
    *,
    seed: int,
    share: float = 0.8,
    eta: float = 1.0,
    top: str = "W",
    mixed_by: int = 10,
    size: int | None = None,
) -> Client:
    """top are the parameters that are mixed, by batches of `mixed_by`; a size is that of the other steps' batches."""

    def client(s: Simulation, i: int) -> Params:
        site, w, o, A = s.sites[i], s.shared, part(s.own[i], "old "), part(s.own[i], "mixing ")
        first = all((A[name] == 1).all() for name in top)
        generator = torch_generator(seed, "samples of the mixture", round_number=s.round, client=f"c{i}")
        drawn = torch.randperm(site.n, generator=generator)[: round(share * site.n)].sort().values.numpy()
        some = site.part(drawn)
        each = -(-some.n // mixed_by)
        order = [np.arange(some.n)] * 50  # where one batch is all, in their own order
        if each > 1:
            order = batches(seed, s.round, i, some, mixed_by, 50 * each, "batches of the mixture")
        losses: list[float] = []
        while any((w[name] != o[name]).any() for name in top) and len(losses) < (50 if first else 1):
            values = []
            for batch in order[each * len(losses) : each * (len(losses) + 1)]:
                m = {**w, **{name: o[name] + (w[name] - o[name]) * A[name] for name in top}}
                here = some.part(batch)
                values.append(loss(Net(m["V"], m["v"]), m["W"], here))
                g = grad(m, here)
                A = {name: np.clip(A[name] - eta * g[name] * (w[name] - o[name]), 0, 1) for name in top}
            losses.append(float(np.mean(values)))
            if len(losses) > 10 and np.std(losses[-10:]) < 0.1:
                break
        assert len(losses) < 50
        m = {**w, **{name: o[name] + (w[name] - o[name]) * A[name] for name in top}}
        ordered = None if size is None else batches(seed, s.round, i, site, size, tau)
        trained = steps(m, site, tau, rate=beta, batches=ordered)
        s.own[i] = {**called("old ", {name: trained[name] for name in top}), **called("mixing ", A)}
        return trained

    return client


def old_models(twin: World, sites: list[Site], top: str = "W") -> Simulation:
    """One model for everybody; each has its first top layers, and shares of one."""
    simulation = shared_head(twin, sites)
    old = {name: simulation.shared[name] for name in top}
    mixing = called("mixing ", {name: np.ones_like(w) for name, w in old.items()})
    return Simulation(sites, simulation.shared, [{**called("old ", old), **mixing} for _ in sites])


def own_backbones(twin: World, sites: list[Site]) -> Simulation:
    """A head of zeros for everybody, and a network for each."""
    own: Params = {"V": twin.net.V, "v": twin.net.v}
    return Simulation(sites, {"W": np.zeros((sites[0].t.shape[1], 5))}, [dict(own) for _ in sites])


def feddbe(tau: int, beta: float, *, kappa: float, share: float = 1.0) -> Client:
    """Model and shift b; m is the common mean, k whether it is known."""

    def client(s: Simulation, i: int) -> Params:
        site, (V, v, W, m), b = s.sites[i], (s.shared[name] for name in "VvWm"), s.own[i]["b"]
        known, mean = bool(s.shared["k"]), np.zeros_like(m)
        for _ in range(tau):
            phi = np.tanh(site.x @ V.T + v)
            mean = (1 - share) * mean + share * phi.mean(axis=0)
            residual = (link((phi + b) @ W[:, :-1].T + W[:, -1], site.softmax) - site.t) / site.n
            slope = residual @ W[:, :-1] + known * kappa * share * (mean - m) / len(m) / site.n
            pre = slope * (1 - phi**2)
            dW = np.concatenate([residual.T @ (phi + b), residual.sum(axis=0)[:, None]], axis=1)
            db = (residual @ W[:, :-1]).sum(axis=0)
            V, v, W = V - beta * pre.T @ site.x, v - beta * pre.sum(axis=0), W - beta * dW
            b = b - beta * known * db
        s.own[i] = {"b": b}
        return {"V": V, "v": v, "W": W, "m": m if known else mean, "k": np.ones(())}

    return client


def first_mean(s: Simulation, combined: Params) -> Params:
    """FedDBE's server: differences are added, and the first mean that arrives is kept."""
    shared = s.shared
    model = {name: shared[name] + combined[name] for name in "VvW"}
    if shared["k"] or not combined["k"]:
        return {**shared, **model}
    return {**model, "m": combined["m"] / combined["k"], "k": np.ones(())}


def shifted(twin: World, sites: list[Site]) -> Simulation:
    """One model for everybody, a head of zeros, and a shift of its features for each."""
    shared = {**shared_head(twin, sites).shared, "m": np.zeros(4), "k": np.zeros(())}
    return Simulation(sites, shared, [{"b": np.zeros(4)} for _ in sites], server=first_mean)


def contrast(received: Params, previous: Params, site: Site, *, mu: float, T: float) -> Slopes:
    """MOON's term: its gradient in the features."""

    def unit(a: F64) -> F64:
        return np.asarray(a / np.linalg.norm(a, axis=1, keepdims=True))

    near = unit(np.tanh(site.x @ received["V"].T + received["v"]))
    far = unit(np.tanh(site.x @ previous["Vp"].T + previous["vp"]))

    def slopes(phi: F64, samples: Indices) -> F64:
        own, length = unit(phi), np.linalg.norm(phi, axis=1, keepdims=True)
        to_near = (own * near[samples]).sum(axis=1, keepdims=True)
        to_far = (own * far[samples]).sum(axis=1, keepdims=True)
        towards = (far[samples] - to_far * own - near[samples] + to_near * own) / length
        weight = 1 / (1 + np.exp(-(to_far - to_near) / T))
        return np.asarray(mu * weight / T * towards / len(phi))

    return slopes


def moon(tau: int, beta: float, *, mu: float, T: float = 0.5) -> Client:
    def client(s: Simulation, i: int) -> Params:
        term = contrast(s.shared, s.own[i], s.sites[i], mu=mu, T=T)
        w = steps(s.shared, s.sites[i], tau, rate=beta, on_features=term)
        s.own[i] = {"Vp": w["V"], "vp": w["v"]}
        return w

    return client


def with_previous(twin: World, sites: list[Site]) -> Simulation:
    """One model for everybody, and theta_0 as everybody's previous one."""
    simulation = shared_head(twin, sites)
    simulation.own = [{"Vp": twin.net.V, "vp": twin.net.v} for _ in sites]
    return simulation


def classes_at(s: Simulation, i: int) -> Indices:
    """The class of each of client i's samples, among those of all."""
    return np.asarray(np.array(s.rows[i])[s.sites[i].t.argmax(axis=1)], dtype=np.int64)


def towards_means(s: Simulation, i: int, mu: float) -> Slopes:
    """mu/M |phi - P_y|^2, a mean over the samples: its gradient in the features."""
    own = classes_at(s, i)

    def slopes(phi: F64, samples: Indices) -> F64:
        c = own[samples]
        return np.asarray(s.shared["k"][c][:, None] * 2 * mu * (phi - s.shared["P"][c]) / phi.size)

    return slopes


def sums_of_classes(s: Simulation, i: int, w: Params) -> Params:
    """Sums of features and numbers of samples of every class, each divided by N_i."""
    site, own = s.sites[i], classes_at(s, i)
    phi = np.tanh(site.x @ w["V"].T + w["v"])
    members = np.equal.outer(np.arange(len(s.shared["k"])), own).astype(float)
    return {"S": members @ phi / site.n, "n": members.sum(axis=1) / site.n}


def fedproto(tau: int, beta: float, *, mu: float) -> Client:
    def client(s: Simulation, i: int) -> Params:
        s.own[i] = steps(s.own[i], s.sites[i], tau, rate=beta, on_features=towards_means(s, i, mu))
        return sums_of_classes(s, i, s.own[i])

    return client


def new_means(s: Simulation, combined: Params) -> Params:
    """FedProto's server: the mean of every class that was sent."""
    P, k = s.shared["P"].copy(), s.shared["k"].copy()
    for c in np.flatnonzero(combined["n"] > 0):
        P[c], k[c] = combined["S"][c] / combined["n"][c], 1
    return {"P": P, "k": k}


def prototypes(twin: World) -> Simulation:
    """A whole model for each, and means of classes that are not known."""
    simulation = own_models(twin, twin.sites, shared=False)
    classes = len(twin.federation.classes or [0])
    simulation.shared = {"P": np.zeros((classes, 4)), "k": np.zeros(classes)}
    simulation.rows = [twin.rows(i) for i in range(len(twin.sites))]
    simulation.server = new_means
    return simulation


def fedpac(tau: int, beta: float, *, mu: float, body: int) -> Client:
    def client(s: Simulation, i: int) -> Params:
        site, given = s.sites[i], s.heads.get(i, s.shared["W"])
        w = {"V": s.shared["V"], "v": s.shared["v"], "W": given}
        phi = np.tanh(site.x @ w["V"].T + w["v"])
        h = sums_of_classes(s, i, w)["S"]
        variance = ((phi**2).sum(axis=1).mean() - (h**2).sum()) / site.n
        w = steps(w, site, tau - body, rate=beta, names="W")
        w = steps(w, site, body, rate=beta, names="Vv", on_features=towards_means(s, i, mu))
        s.own[i] = {"W": w["W"]}
        sent = {"V": w["V"], "v": w["v"], **sums_of_classes(s, i, w)}
        return {**sent, "W_i": w["W"] - given, "h": h, "variance": np.asarray(variance)}

    return client


def combine_heads(s: Simulation, combined: Params) -> Params:
    """FedPAC's server: backbones are averaged, and heads combined for everybody who sent one."""
    moved, alone = {name: s.shared[name] + combined[name] for name in "Vv"}, s.alone
    cohort = sorted(alone)
    heads = [s.heads.get(j, s.shared["W"]) + alone[j]["W_i"] for j in cohort]
    for i in cohort:
        away = np.array([(alone[i]["h"] - alone[j]["h"]).ravel() for j in cohort])
        spread = np.diag([np.sqrt(float(alone[j]["variance"])) for j in cohort])
        share = least_norm(np.concatenate([away, spread], axis=1))
        s.heads = {**s.heads, i: np.asarray(sum(a * head for a, head in zip(share, heads, strict=True)))}
    return {**s.shared, **moved, **new_means(s, combined)}


def least_norm(points: F64) -> F64:
    """Shares of the convex combination of rows with the least norm, by trying every set of rows that may count."""
    n, best, least = len(points), np.zeros(len(points)), np.inf
    for chosen in range(1, 2**n):
        some = [j for j in range(n) if chosen >> j & 1]
        gram = points[some] @ points[some].T
        system = np.block([[gram, -np.ones((len(some), 1))], [np.ones((1, len(some))), np.zeros((1, 1))]])
        share = np.linalg.lstsq(system, np.append(np.zeros(len(some)), 1.0), rcond=None)[0][:-1]
        if share.min() < -1e-12 or abs(share.sum() - 1) > 1e-9:
            continue
        norm = float(share @ gram @ share)
        if norm < least:
            least, best = norm, np.zeros(n)
            best[some] = share
    return best


def combined_heads(twin: World) -> Simulation:
    """A shared backbone, means of classes that are not known, and a head of zeros for each; the server has none yet."""
    simulation = shared_head(twin, global_sites(twin))
    classes = simulation.sites[0].t.shape[1]
    simulation.own = [{"W": simulation.shared["W"]} for _ in simulation.sites]
    simulation.shared |= {"P": np.zeros((classes, 4)), "k": np.zeros(classes)}
    simulation.rows = [list(range(classes)) for _ in simulation.sites]
    simulation.server = combine_heads
    return simulation


def local_sites(twin: World) -> list[Site]:
    """labels="local": everybody has as many outputs as the client with the most classes."""
    widest = max(site.t.shape[1] for site in twin.sites)
    return [replace(s, t=np.pad(s.t, ((0, 0), (0, widest - s.t.shape[1])))) for s in twin.sites]


def global_sites(twin: World) -> list[Site]:
    """labels="global": an output for every class of the federation."""
    classes = np.array(twin.federation.classes)
    return [
        replace(site, t=(client.y_train.numpy()[:, None] == classes).astype(float))
        for site, client in zip(twin.sites, twin.federation, strict=True)
    ]


def shared_head(twin: World, sites: list[Site], head: F64 | None = None) -> Simulation:
    """One model for everybody, its head of zeros if none is given; clients keep nothing."""
    W = np.zeros((sites[0].t.shape[1], 5)) if head is None else head
    return Simulation(sites, {"V": twin.net.V, "v": twin.net.v, "W": W}, [{} for _ in sites])


def own_heads(twin: World) -> Simulation:
    """A shared network, and a head of zeros for each."""
    own: list[Params] = [{"W": np.zeros((site.t.shape[1], 5))} for site in twin.sites]
    return Simulation(twin.sites, {"V": twin.net.V, "v": twin.net.v}, own)


def own_models(twin: World, sites: list[Site], *, shared: bool) -> Simulation:
    """A whole model for each, and one for everybody, or none."""
    whole: Params = {"V": twin.net.V, "v": twin.net.v}
    own = [{**whole, "W": np.zeros((site.t.shape[1], 5))} for site in sites]
    return Simulation(sites, dict(own[0]) if shared else {}, own)


@dataclass(frozen=True)
class Rival:
    """A method twice: as the package has it, and what NumPy plays."""

    algorithm: pflego.Algorithm
    start: Callable[[World], Simulation]
    client: Client
    server_lr: float | None = None
    scale: float | None = None
    server: Server | None = None
    exchanges: int = 1

    def play(self, twin: World, chosen: Sequence[Sequence[int]], **how: Any) -> tuple[Simulation, list[int]]:
        """Play rounds from the start; give where everybody is, and how many replies arrived."""
        simulation = self.start(twin)
        simulation.counts = how.pop("counts", ())
        how |= {"server": self.server, "exchanges": self.exchanges}
        arrived = simulation.play(self.client, chosen, server_lr=self.server_lr, scale=self.scale, **how)
        return simulation, arrived


def every_method(*, tau: int, beta: float, rho: float, scale: float, seed: int) -> dict[str, Rival]:
    """Give all methods by name, PFLEGO among them; scale is I/r, and the seed draws FedBABU's head."""
    rates: dict[str, Any] = {"steps": tau, "client_lr": beta}
    plain: dict[str, Any] = {**rates, "head_init": "zeros"}
    one_head: dict[str, Any] = {**plain, "labels": "local"}
    babu = pflego.FedBabu(**rates, labels="local", momentum=0.5)

    def one_model(twin: World) -> Simulation:
        return shared_head(twin, local_sites(twin))

    def fixed_head(twin: World) -> Simulation:
        head = babu.init_shared(twin.model, twin.federation.most_classes or 1, seed)["head"].numpy()
        return shared_head(twin, local_sites(twin), head)

    return {
        "pflego": Rival(
            pflego.PFLEGO(**plain, server_lr=rho),
            own_heads,
            pflego_client(tau, beta, rho=rho, scale=scale),
            server_lr=rho,
            scale=scale,
        ),
        "fedavg": Rival(pflego.FedAvg(**one_head), one_model, fedavg(tau, beta)),
        "fedbn": Rival(pflego.FedBN(**one_head), one_model, fedavg(tau, beta)),  # there is no batch norm here
        "fedprox": Rival(pflego.FedProx(**one_head, mu=0.7), one_model, fedavg(tau, beta, mu=0.7)),
        "feddbe": Rival(
            pflego.FedDBE(**one_head, kappa=2.0, mean_share=0.7),
            lambda twin: shifted(twin, local_sites(twin)),
            feddbe(tau, beta, kappa=2.0, share=0.7),
        ),
        "moon": Rival(
            pflego.MOON(**one_head, mu=2.0),
            lambda twin: with_previous(twin, local_sites(twin)),
            moon(tau, beta, mu=2.0),
        ),
        "fedproto": Rival(pflego.FedProto(**plain, mu=0.8), prototypes, fedproto(tau, beta, mu=0.8)),
        "fedpac": Rival(
            pflego.FedPAC(**plain, mu=0.8, body_steps=2), combined_heads, fedpac(tau, beta, mu=0.8, body=2)
        ),
        "fedper": Rival(pflego.FedPer(**plain), own_heads, fedper(tau, beta)),
        "fedrep": Rival(pflego.FedRep(**plain, body_steps=2), own_heads, fedrep(tau, beta, body=2)),
        "fedbabu": Rival(babu, fixed_head, fedbabu(tau, beta, momentum=0.5)),
        "ditto": Rival(
            pflego.Ditto(**one_head, mu=0.4),
            lambda twin: own_models(twin, local_sites(twin), shared=True),
            ditto(tau, beta, mu=0.4),
        ),
        "fedrecon": Rival(
            pflego.FedRecon(**plain, server_lr=rho), own_heads, fedrecon(tau, beta), server_lr=rho
        ),
        "feddane": Rival(
            pflego.FedDane(**one_head, mu=0.7),
            one_model,
            feddane(tau, beta, mu=0.7),
            server=gradient_then_differences,
            exchanges=2,
        ),
        "fednova": Rival(
            pflego.FedNova(**one_head),
            one_model,
            lambda s, i: per_step(s.moved(fedavg(tau, beta)(s, i)), tau * beta),
            server=mean_length,
        ),
        "fedopt": Rival(
            pflego.FedOpt(**one_head, server_optimizer="yogi", server_lr=rho),
            one_model,
            differences(fedavg(tau, beta)),
            server=fedopt("yogi", rho),
        ),
        "fedsgd": Rival(
            pflego.FedSGD(client_lr=beta, labels="local", head_init="zeros"),
            one_model,
            one_gradient,
            server=gradient_step(beta),
        ),
        "perfedavg": Rival(
            pflego.PerFedAvg(**one_head, inner_lr=0.2),
            one_model,
            perfedavg(tau, beta, inner=0.2, seed=seed),
        ),
        "pfedme": Rival(
            pflego.PFedMe(**one_head, inner_steps=3, mu=0.8, local_lr=0.4),
            lambda twin: own_models(twin, local_sites(twin), shared=True),
            pfedme(tau, beta, inner=3, mu=0.8, eta=0.4),
        ),
        "uga": Rival(
            pflego.UGA(**one_head, server_lr=rho, server_optimizer="sgd"),
            one_model,
            uga(tau, beta),
            server=gradient_step(rho),
        ),
        "local": Rival(
            pflego.Local(**plain),
            lambda twin: own_models(twin, twin.sites, shared=False),
            alone(tau, beta),
        ),
        "scaffold": Rival(
            pflego.Scaffold(**one_head, server_lr=0.8),
            lambda twin: controlled(twin, local_sites(twin)),
            differences(scaffold(tau, beta)),
            server=scaffold_server(0.8),
        ),
        "feddyn": Rival(
            pflego.FedDyn(**one_head, mu=0.4),
            lambda twin: sloped(twin, local_sites(twin)),
            differences(feddyn(tau, beta, mu=0.4)),
            server=feddyn_server(0.4),
        ),
        "apfl": Rival(
            pflego.APFL(**one_head), lambda twin: mixtures(twin, local_sites(twin)), apfl(tau, beta)
        ),
        "fedrod": Rival(
            pflego.FedRoD(**one_head),
            lambda twin: two_heads(twin, local_sites(twin)),
            fedrod(tau, beta),
        ),
        "fedala": Rival(
            pflego.FedALA(**one_head),
            lambda twin: old_models(twin, local_sites(twin)),
            fedala(tau, beta, seed=seed),
        ),
        "lgfedavg": Rival(
            pflego.LGFedAvg(**one_head),
            lambda twin: own_backbones(twin, local_sites(twin)),
            lgfedavg(tau, beta),
        ),
    }


def assert_at(run: Run, simulation: Simulation, tolerance: float = 1e-10) -> None:
    """A run has come to where a simulation has: what is shared, and what everybody keeps."""
    assert_weights(run.shared, simulation.shared, tolerance)
    for i, own in enumerate(simulation.own):
        assert_weights(run.states[f"c{i}"], own, tolerance)


def assert_weights(ours: Weights, theirs: Params, tolerance: float = 1e-10) -> None:
    assert {NAMES[name] for name in ours} == set(theirs)
    for name, tensor in ours.items():
        assert distance(tensor, theirs[NAMES[name]]) < tolerance, name
