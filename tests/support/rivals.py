"""PFLEGO's rivals in NumPy float64: what a client of each does, and rounds of them on unequal clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import pflego
from pflego.declaration import declared
from pflego.randomness import torch_generator
from pflego.runs.run import Run
from pflego.weights import Weights
from tests.support.reference import F64, Adam, Net, Params, Site, World, distance, gradients

Indices = npt.NDArray[np.int64]
NAMES = {"0.weight": "V", "0.bias": "v", "head": "W"}  # the package's, and those here


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
) -> Params:
    """Gradient descent on l_i(w) + decay/2 |w|^2 + mu/2 |w - anchor|^2 + <slope, w>, in the parameters named."""
    velocity = {name: np.zeros_like(w[name]) for name in names}
    for k in range(count):
        g = grad(w, site if batches is None else site.part(batches[k]))
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

    def weights(self, members: Sequence[int], scale: float | None) -> dict[int, float]:
        """w_i: shares that sum to one over the members, or with a scale I/r, shares of all clients times it."""
        counts = self.counts or [site.n for site in self.sites]
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
            self.round = t
            weights = self.weights(members, scale)
            for self.exchange in range(exchanges):
                work = {i: client(self, i) for i in members}
                there = [i for i in members if arrives(i, t)]
                if there:
                    lost = len(there) < len(members)
                    part = 1 / sum(weights[i] for i in there) if renormalise and lost else 1.0
                    raw = server_lr is not None or server is not None
                    sent = [transform(work[i] if raw else self.moved(work[i])) for i in there]
                    combined = combine(sent, [part * weights[i] for i in there])
                    self.shared = (
                        self._stepped(combined, server_lr) if server is None else server(self, combined)
                    )
            arrived.append(len(there))
        return arrived

    def moved(self, work: Params) -> Params:
        return {name: w - self.shared[name] for name, w in work.items()}

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
    return (np.log(np.exp(z).sum(axis=1)) - (z * site.t).sum(axis=1)).mean()


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


def local_sites(twin: World) -> list[Site]:
    """labels="local": everybody has as many outputs as the client with the most classes."""
    widest = max(site.t.shape[1] for site in twin.sites)
    return [Site(s.x, np.pad(s.t, ((0, 0), (0, widest - s.t.shape[1]))), s.softmax) for s in twin.sites]


def global_sites(twin: World) -> list[Site]:
    """labels="global": an output for every class of the federation."""
    classes = np.array(twin.federation.classes)
    return [
        Site(site.x, (client.y_train.numpy()[:, None] == classes).astype(float))
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
        "fedprox": Rival(pflego.FedProx(**one_head, mu=0.7), one_model, fedavg(tau, beta, mu=0.7)),
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
