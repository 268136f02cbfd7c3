"""PFLEGO's rivals in NumPy float64: what a client of each does, and rounds of them on unequal clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import pflego
from pflego.randomness import torch_generator
from pflego.runs.run import Run
from pflego.weights import Weights
from tests.support.reference import F64, Adam, Net, Params, Site, World, distance, gradients, link

Indices = npt.NDArray[np.int64]
Slopes = Callable[[F64, Indices], F64]  # of features and whose they are: a term's gradient in them
ALONE = ("W_i", "h", "variance")  # what the server does not combine
NAMES = {  # the package's, and those here
    "0.weight": "V",
    "0.bias": "v",
    "head": "W",
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


Combine = Callable[[Sequence[Params], Sequence[float]], Params]
Server = Callable[["Simulation", Params, dict[int, Params]], Params]


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
    round: int = 0  # the one that is played
    server: Server | None = (
        None  # gives what is shared next, of what was combined and what was not; None: it adds
    )
    rows: Sequence[Sequence[int]] = ()  # of each client: its classes among those of all
    heads: dict[int, F64] = field(default_factory=dict)  # that the server has for single clients

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
        scale: float | None = None,
        arrives: Callable[[int, int], bool] = lambda i, t: True,
        renormalise: bool = False,
        transform: Callable[[Params], Params] = lambda sent: sent,
        combine: Combine = add_up,
    ) -> list[int]:
        """Combine what clients send, round by round; give how many replies arrived.

        Without server_lr, how far models went is sent and added to the shared one. With it, gradients are sent and the
        server takes a step of Adam. A reply that is lost counts as nothing, or the weights of those that arrived are
        scaled to sum to one.
        """
        arrived = []
        for t, members in enumerate(chosen, start=1):
            self.round = t
            weights = self.weights(members, scale)
            work = {i: client(self, i) for i in members}
            there = [i for i in members if arrives(i, t)]
            arrived.append(len(there))
            if not there:
                continue
            lost = len(there) < len(members)
            part = 1 / sum(weights[i] for i in there) if renormalise and lost else 1.0
            sent = [transform(self._sent(work[i], server_lr)) for i in there]
            alone = {
                i: {n: a for n, a in one.items() if n in ALONE} for i, one in zip(there, sent, strict=True)
            }
            sent = [{n: a for n, a in one.items() if n not in ALONE} for one in sent]
            together = combine(sent, [part * weights[i] for i in there])
            if self.server is not None:
                self.shared = self.server(self, together, alone)
                continue
            for name, combined in together.items():
                if server_lr is None:
                    self.shared = {**self.shared, name: self.shared[name] + combined}
                else:
                    adam = self.adams.setdefault(name, Adam(server_lr))
                    self.shared = {**self.shared, name: adam.step(self.shared[name], combined)}
        return arrived

    def _sent(self, work: Params, server_lr: float | None) -> Params:
        if server_lr is not None:
            return work
        return {name: w - self.shared[name] if name in self.shared else w for name, w in work.items()}


Client = Callable[[Simulation, int], Params]  # moves own[i], gives what is sent


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


def alone(tau: int, beta: float) -> Client:
    def client(s: Simulation, i: int) -> Params:
        s.own[i] = steps(s.own[i], s.sites[i], tau, rate=beta)
        return {}

    return client


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


def first_mean(s: Simulation, combined: Params, alone: dict[int, Params]) -> Params:
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


def new_means(s: Simulation, combined: Params, alone: dict[int, Params]) -> Params:
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


def combine_heads(s: Simulation, combined: Params, alone: dict[int, Params]) -> Params:
    """FedPAC's server: backbones are averaged, and heads combined for everybody who sent one."""
    moved = {name: s.shared[name] + combined[name] for name in "Vv"}
    cohort = sorted(alone)
    heads = [s.heads.get(j, s.shared["W"]) + alone[j]["W_i"] for j in cohort]
    for i in cohort:
        away = np.array([(alone[i]["h"] - alone[j]["h"]).ravel() for j in cohort])
        spread = np.diag([np.sqrt(float(alone[j]["variance"])) for j in cohort])
        share = least_norm(np.concatenate([away, spread], axis=1))
        s.heads = {**s.heads, i: np.asarray(sum(a * head for a, head in zip(share, heads, strict=True)))}
    return {**s.shared, **moved, **new_means(s, combined, alone)}


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

    def play(self, twin: World, chosen: Sequence[Sequence[int]], **how: Any) -> tuple[Simulation, list[int]]:
        """Play rounds from the start; give where everybody is, and how many replies arrived."""
        simulation = self.start(twin)
        simulation.counts = how.pop("counts", ())
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
