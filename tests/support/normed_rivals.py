"""The methods on a network with batch norm and dropout, some of it personal, in NumPy float64.

w = (V, v, g, b, m, s, W): m and s are running statistics, which no gradient moves and servers only average; `kept` are
the names of what is personal. Clients send differences or gradients, as those of the package do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import pflego
from pflego.randomness import torch_generator
from tests.support.normed import (
    BETA,
    PLAIN,
    SEED,
    SIZE,
    TAU,
    both_ways,
    local_steps,
    masks,
    through,
)
from tests.support.reference import F64, Params, Site, link
from tests.support.rivals import (
    Client,
    Indices,
    Server,
    Simulation,
    batches,
    called,
    classes_at,
    feddyn_server,
    fedopt,
    gradient_step,
    least_norm,
    mean_length,
    new_means,
    part,
    scaffold_server,
    towards_means,
)

EVERYTHING, STATISTICS = "VvgbmsW", "ms"
Method = Callable[[str], Client]  # of what is kept


def whole(s: Simulation, i: int, kept: str) -> Params:
    return {**{n: w for n, w in s.shared.items() if n in EVERYTHING}, **{n: s.own[i][n] for n in kept}}


def keep(s: Simulation, i: int, kept: str, w: Params, **more: Any) -> None:
    s.own[i] = {**s.own[i], **{n: w[n] for n in kept}, **more}


def way(s: Simulation, w: Params) -> Params:
    return {n: w[n] - start for n, start in s.shared.items() if n in EVERYTHING}


def weights_of(w: Params) -> Params:
    return {n: array for n, array in w.items() if n not in STATISTICS}


def but_statistics(server: Server) -> Server:
    """Leave running statistics out of what a server does: their mean difference is added."""

    def step(s: Simulation, sent: Params) -> Params:
        averaged = {n: s.shared[n] + sent[n] for n in STATISTICS if n in s.shared}
        alone = replace(s, shared=weights_of(s.shared))
        stepped = server(alone, weights_of(sent))
        s.memory, s.heads = alone.memory, alone.heads
        return {**stepped, **averaged}

    return step


def add(s: Simulation, sent: Params) -> Params:
    return {n: w + sent[n] for n, w in s.shared.items()}


def averaging(kept: str) -> Client:
    def client(s: Simulation, i: int) -> Params:
        w = local_steps(whole(s, i, kept), s, i)
        keep(s, i, kept, w)
        return way(s, w)

    return client


def fednova(kept: str) -> Client:
    """One epoch of batches."""

    def client(s: Simulation, i: int) -> Params:
        count = -(-s.sites[i].n // SIZE)
        w, length = local_steps(whole(s, i, kept), s, i, count=count), BETA * count
        keep(s, i, kept, w)
        moved = {n: d if n in STATISTICS else d / length for n, d in way(s, w).items()}
        return {**moved, "length": np.array([length, 1.0])}

    return client


def along(w: Params, s: Simulation, i: int, kept: str, slope: Params, statistics: Params) -> Params:
    """Send a gradient and how far statistics went; what is kept takes a step of the gradient."""
    stepped = {n: w[n] - BETA * slope[n] if n in slope else statistics[n] for n in kept}
    keep(s, i, kept, stepped)
    gradient = {n: g for n, g in slope.items() if n in s.shared}
    return {**gradient, **{n: statistics[n] - s.shared[n] for n in STATISTICS if n in s.shared}}


def fedsgd(kept: str) -> Client:
    def client(s: Simulation, i: int) -> Params:
        w, [batch] = whole(s, i, kept), batches(SEED, s.round, i, s.sites[i], SIZE, 1)
        done = both_ways(w, s.sites[i].part(batch), masks(s, i)(len(batch)))
        return along(w, s, i, kept, done.loss_slope, done.statistics)

    return client


def feddane(kept: str) -> Client:
    def client(s: Simulation, i: int) -> Params:
        w, site = whole(s, i, kept), s.sites[i]
        own = both_ways(w, site, masks(s, i, "gradient")(site.n)).loss_slope
        own = {n: g for n, g in own.items() if n in s.shared}
        if s.exchange == 0:
            return own
        slope = {n: s.memory[n] - g for n, g in own.items()}
        w = local_steps(w, s, i, anchor=s.shared, mu=0.7, slope=slope)
        keep(s, i, kept, w)
        return way(s, w)

    return client


def gradient_first(s: Simulation, sent: Params) -> Params:
    """FedDANE's server."""
    if s.exchange == 0:
        s.memory = sent
        return s.shared
    return add(s, sent)


UGA_SIZE = 5  # no batch is of a single sample, which would see the running statistics


def last_gradient(w: Params, s: Simulation, i: int) -> tuple[float, Params, Params]:
    done = both_ways(w, s.sites[i], masks(s, i, "gradient")(s.sites[i].n))
    return done.loss, done.loss_slope, done.statistics


def uga_first(kept: str) -> Client:
    def client(s: Simulation, i: int) -> Params:
        w = local_steps(whole(s, i, kept), s, i, count=TAU - 1)
        _, slope, statistics = last_gradient(w, s, i)
        return along(w, s, i, kept, slope, statistics)

    return client


def uga_second(kept: str) -> Client:
    """The loss after the steps, differentiated by differences: no Hessian is written down."""

    def client(s: Simulation, i: int) -> Params:
        start, eps = whole(s, i, kept), 1e-5

        def loss_after(name: str, place: tuple[int, ...], far: float) -> float:
            there = {**start, name: start[name].copy()}
            there[name][place] += far
            w = local_steps(there, s, i, count=TAU - 1, size=UGA_SIZE)
            return last_gradient(w, s, i)[0]

        w = local_steps(start, s, i, count=TAU - 1, size=UGA_SIZE)
        _, slope, statistics = last_gradient(w, s, i)
        sent = along(w, s, i, kept, slope, statistics)
        for name in sent.keys() - set(STATISTICS):
            for place in np.ndindex(sent[name].shape):
                sides = [loss_after(name, place, far) for far in (eps, -eps)]
                sent[name][place] = (sides[0] - sides[1]) / (2 * eps)
        return sent

    return client


def perfedavg(kept: str) -> Client:
    """Hessian-free, with a = 0.2 and delta = 0.01; three batches a step."""
    inner, delta = 0.2, 0.01

    def moved(w: Params, slope: Params, rate: float) -> Params:
        return {n: w[n] - rate * slope[n] if n in slope else w[n] for n in w}

    def client(s: Simulation, i: int) -> Params:
        w, site, mask = whole(s, i, kept), s.sites[i], masks(s, i)
        generator = torch_generator(SEED, "batches", round_number=s.round, client=f"c{i}")
        for _ in range(TAU):
            order = _permutation(site.n, generator)
            one, two, three = (site.part(b) for b in np.array_split(order[: 3 * SIZE], 3))
            at_w = both_ways(w, one, mask(one.n))
            w = {**w, **at_w.statistics}
            d = both_ways(moved(w, at_w.loss_slope, inner), two, mask(two.n)).loss_slope
            same = mask(three.n)
            ahead, behind = (both_ways(moved(w, d, sign * delta), three, same).loss_slope for sign in (-1, 1))
            meta = {n: d[n] - inner * (ahead[n] - behind[n]) / (2 * delta) for n in d}
            w = moved(w, meta, BETA)
        keep(s, i, kept, w)
        return way(s, w)

    return client


def _permutation(n: int, generator: torch.Generator) -> Indices:
    return torch.randperm(n, generator=generator).numpy()


def pfedme(kept: str) -> Client:
    """theta_i is all of the state; K = 2, lambda = 0.8, eta = 0.4."""

    def client(s: Simulation, i: int) -> Params:
        theta, site, mask = whole(s, i, kept), s.sites[i], masks(s, i)
        local = weights_of(s.shared)
        for batch in batches(SEED, s.round, i, site, SIZE, TAU):
            for _ in range(2):
                done = both_ways(theta, site.part(batch), mask(len(batch)))
                pull = {n: 0.8 * (theta[n] - w) for n, w in local.items()}
                stepped = {n: theta[n] - BETA * (g + pull.get(n, 0)) for n, g in done.loss_slope.items()}
                theta = {**theta, **stepped, **done.statistics}
            local = {n: w - 0.4 * 0.8 * (w - theta[n]) for n, w in local.items()}
        s.own[i] = theta
        return way(s, {**theta, **local})

    return client


def share_of_the_way(share: float) -> Server:
    return lambda s, sent: {n: w + share * sent[n] for n, w in s.shared.items()}


def scaffold(kept: str) -> Client:
    def client(s: Simulation, i: int) -> Params:
        c, c_i = part(s.shared, "control "), part(s.own[i], "control ")
        x = whole(s, i, kept)
        y = local_steps(x, s, i, slope={n: c[n] - c_i[n] for n in c})
        new = {n: c_i[n] - c[n] + (x[n] - y[n]) / (TAU * BETA) for n in c}
        keep(s, i, kept, y, **called("control ", new))
        return {**way(s, y), **called("control ", {n: new[n] - c_i[n] for n in c})}

    return client


def feddyn(kept: str) -> Client:
    mu = 0.4

    def client(s: Simulation, i: int) -> Params:
        g = part(s.own[i], "slope ")
        w = local_steps(
            whole(s, i, kept), s, i, anchor=s.shared, mu=mu, slope={n: -slope for n, slope in g.items()}
        )
        new = {n: g[n] - mu * (w[n] - s.shared[n]) for n in g}
        keep(s, i, kept, w, **called("slope ", new))
        return way(s, w)

    return client


def apfl(kept: str) -> Client:
    """All of v_i is the state, what is personal in it."""

    def client(s: Simulation, i: int) -> Params:
        w, v, a, site = dict(s.shared), part(s.own[i], "own "), s.own[i]["a"], s.sites[i]
        mask, mask_of_mixture, mixed = masks(s, i), masks(s, i, "mixture"), weights_of(s.shared)
        for k, batch in enumerate(batches(SEED, s.round, i, site, SIZE, TAU)):
            some = site.part(batch)
            mixture = {**v, **{n: a * v[n] + (1 - a) * w[n] for n in mixed}}
            at_mixture = both_ways(mixture, some, mask_of_mixture(some.n))
            v = {**v, **at_mixture.statistics}
            at_w = both_ways({**v, **w}, some, mask(some.n))
            slope = sum((at_mixture.loss_slope[n] * (v[n] - w[n])).sum() for n in mixed)
            w = {n: array - BETA * at_w.loss_slope[n] if n in mixed else array for n, array in w.items()}
            w |= {n: array for n, array in at_w.statistics.items() if n in w}
            for n, g in at_mixture.loss_slope.items():
                v[n] = v[n] - BETA * (a if n in mixed else 1) * g
            if k == 0:
                a = np.clip(a - BETA * slope, 0, 1)
        s.own[i] = {**called("own ", v), "a": a}
        return way(s, w)

    return client


def lgfedavg(kept: str) -> Client:
    return averaging("Vvgbms")


def fedrod(kept: str) -> Client:
    def client(s: Simulation, i: int) -> Params:
        w, own, site, mask = whole(s, i, kept), s.own[i]["own W"], s.sites[i], masks(s, i)
        with np.errstate(divide="ignore"):
            prior = np.log(site.t.sum(axis=0))
        for batch in batches(SEED, s.round, i, site, SIZE, TAU):
            some = site.part(batch)
            done = through(w, some, mask(some.n))
            ones = np.concatenate([done.phi, np.ones((some.n, 1))], axis=1)
            generic = (link(ones @ w["W"].T + prior, True) - some.t) / some.n
            personal = (link(ones @ (w["W"] + own).T, True) - some.t) / some.n
            slope = {**done.back(generic @ w["W"][:, :-1]), "W": generic.T @ ones}
            own = own - BETA * personal.T @ ones
            w = {**w, **{n: w[n] - BETA * g for n, g in slope.items()}, **done.statistics}
        keep(s, i, kept, w, **{"own W": own})
        return way(s, w)

    return client


def fedala(kept: str) -> Client:
    """p = 1: the head is mixed, on features of evaluation mode; batches of 10 from four fifths of the samples."""

    def client(s: Simulation, i: int) -> Params:
        w, site, o, A = whole(s, i, kept), s.sites[i], s.own[i]["old W"], s.own[i]["mixing W"]
        generator = torch_generator(SEED, "samples of the mixture", round_number=s.round, client=f"c{i}")
        some = site.part(np.sort(_permutation(site.n, generator)[: round(0.8 * site.n)]))
        each, first = -(-some.n // 10), bool((A == 1).all())
        drawn = [np.arange(some.n)] * 50
        if each > 1:
            drawn = batches(SEED, s.round, i, some, 10, 50 * each, "batches of the mixture")
        losses: list[float] = []
        while (w["W"] != o).any() and len(losses) < (50 if first else 1):
            values = []
            for batch in drawn[each * len(losses) : each * (len(losses) + 1)]:
                mixture = {**w, "W": o + (w["W"] - o) * A}
                done = both_ways(mixture, some.part(batch), None, training=False)
                values.append(done.loss)
                A = np.clip(A - done.loss_slope["W"] * (w["W"] - o), 0, 1)
            losses.append(float(np.mean(values)))
            if len(losses) > 10 and np.std(losses[-10:]) < 0.1:
                break
        w = local_steps({**w, "W": o + (w["W"] - o) * A}, s, i)
        keep(s, i, kept, w, **{"old W": w["W"], "mixing W": A})
        return way(s, w)

    return client


def feddbe(kept: str) -> Client:
    kappa, share = 2.0, 0.7

    def client(s: Simulation, i: int) -> Params:
        w, b, site, mask = whole(s, i, kept), s.own[i]["shift"], s.sites[i], masks(s, i)
        goal, known, mean = s.shared["F"], bool(s.shared["k"]), np.zeros(4)
        for batch in batches(SEED, s.round, i, site, SIZE, TAU):
            some = site.part(batch)
            done = through(w, some, mask(some.n))
            mean = (1 - share) * mean + share * done.phi.mean(axis=0)
            W, shifted = w["W"], done.phi + b
            residual = (link(shifted @ W[:, :-1].T + W[:, -1], True) - some.t) / some.n
            pull = known * kappa * share * (mean - goal) / 4 / some.n
            dW = np.concatenate([residual.T @ shifted, residual.sum(axis=0)[:, None]], axis=1)
            slope = {**done.back(residual @ W[:, :-1] + pull), "W": dW}
            b = b - BETA * known * (residual @ W[:, :-1]).sum(axis=0)
            w = {**w, **{n: w[n] - BETA * g for n, g in slope.items()}, **done.statistics}
        keep(s, i, kept, w, shift=b)
        return {**way(s, w), "F": 0 * mean if known else mean, "k": np.array(0.0 if known else 1.0)}

    return client


def first_mean(s: Simulation, sent: Params) -> Params:
    """FedDBE's server."""
    model = {n: w + sent[n] for n, w in s.shared.items() if n in EVERYTHING}
    if s.shared["k"]:
        return {**s.shared, **model}
    return {**model, "F": sent["F"] / sent["k"], "k": np.ones(())}


def moon(kept: str) -> Client:
    mu, T = 2.0, 0.5

    def length_of(a: F64) -> F64:
        """Not zero, also where dropout has left nothing: no slope in such features goes any further."""
        return np.asarray(np.maximum(np.linalg.norm(a, axis=1, keepdims=True), 1e-8))

    def unit(a: F64) -> F64:
        return np.asarray(a / length_of(a))

    def client(s: Simulation, i: int) -> Params:
        received, site = whole(s, i, kept), s.sites[i]
        near, far = (
            unit(through(w, site, None, training=False).phi) for w in (received, part(s.own[i], "previous "))
        )

        def term(phi: F64, samples: Indices) -> F64:
            own, length = unit(phi), length_of(phi)
            to_near = (own * near[samples]).sum(axis=1, keepdims=True)
            to_far = (own * far[samples]).sum(axis=1, keepdims=True)
            towards = (far[samples] - to_far * own - near[samples] + to_near * own) / length
            return np.asarray(mu / (1 + np.exp(-(to_far - to_near) / T)) / T * towards / len(phi))

        w = local_steps(received, s, i, on_features=term)
        keep(s, i, kept, w, **called("previous ", {n: w[n] for n in "Vvgbms"}))
        return way(s, w)

    return client


def class_sums(s: Simulation, i: int, w: Params) -> tuple[F64, Params]:
    """Features of evaluation mode; their sums by class, and the numbers of samples, divided by N_i."""
    site, own = s.sites[i], classes_at(s, i)
    phi = through(w, site, None, training=False).phi
    members = np.equal.outer(np.arange(len(s.shared["k"])), own).astype(float)
    return phi, {"S": members @ phi / site.n, "n": members.sum(axis=1) / site.n}


def fedproto(kept: str) -> Client:
    def client(s: Simulation, i: int) -> Params:
        s.own[i] = local_steps(s.own[i], s, i, on_features=towards_means(s, i, 0.8))
        return class_sums(s, i, s.own[i])[1]

    return client


def fedpac(kept: str) -> Client:
    """Two of the steps are the backbone's."""

    def client(s: Simulation, i: int) -> Params:
        site, given = s.sites[i], s.heads.get(i, s.shared["W"])
        w = {**whole(s, i, kept), "W": given}
        phi, sums = class_sums(s, i, w)
        h = sums["S"]
        variance = ((phi**2).sum(axis=1).mean() - (h**2).sum()) / site.n
        for batch in batches(SEED, s.round, i, site, SIZE, TAU - 2, "head batches"):
            slope = both_ways(w, site.part(batch), None, training=False).loss_slope["W"]
            w = {**w, "W": w["W"] - BETA * slope}
        w = local_steps(w, s, i, count=2, names="Vvgb", on_features=towards_means(s, i, 0.8))
        keep(s, i, kept, w, W=w["W"])
        theta = {n: d for n, d in way(s, w).items() if n != "W"}
        head = {"W_i": w["W"] - given, "h": h, "variance": np.asarray(variance)}
        return {**theta, **class_sums(s, i, w)[1], **head}

    return client


def combine_heads(s: Simulation, sent: Params) -> Params:
    """FedPAC's server."""
    moved = {n: w + sent[n] for n, w in s.shared.items() if n in EVERYTHING and n != "W"}
    cohort = sorted(s.alone)
    heads = [s.heads.get(j, s.shared["W"]) + s.alone[j]["W_i"] for j in cohort]
    for i in cohort:
        away = np.array([(s.alone[i]["h"] - s.alone[j]["h"]).ravel() for j in cohort])
        spread = np.diag([np.sqrt(float(s.alone[j]["variance"])) for j in cohort])
        share = least_norm(np.concatenate([away, spread], axis=1))
        s.heads = {**s.heads, i: np.asarray(sum(a * head for a, head in zip(share, heads, strict=True)))}
    return {**s.shared, **moved, **new_means(s, sent)}


def nothing_more(sites: list[Site], shared: Params, own: Params) -> tuple[Params, Params]:
    return shared, own


def zeros_of(prefix: str, *, common: bool = False) -> Callable[..., tuple[Params, Params]]:
    """Zeros for all that gradients move and everybody shares: each client's, and everybody's."""

    def start(sites: list[Site], shared: Params, own: Params) -> tuple[Params, Params]:
        zeros = called(prefix, {n: np.zeros_like(w) for n, w in weights_of(shared).items()})
        return {**shared, **(zeros if common else {})}, {**own, **zeros}

    return start


def of_own_model(sites: list[Site], shared: Params, own: Params) -> tuple[Params, Params]:
    return shared, {**shared, **own}


def of_mixture(sites: list[Site], shared: Params, own: Params) -> tuple[Params, Params]:
    return shared, {**called("own ", {**shared, **own}), "a": np.asarray(0.5)}


def of_shared_head(sites: list[Site], shared: Params, own: Params) -> tuple[Params, Params]:
    return {"W": shared["W"]}, {n: w for n, w in {**shared, **own}.items() if n != "W"}


def of_two_heads(sites: list[Site], shared: Params, own: Params) -> tuple[Params, Params]:
    return shared, {**own, "own W": np.zeros_like(shared["W"])}


def of_old_head(sites: list[Site], shared: Params, own: Params) -> tuple[Params, Params]:
    return shared, {**own, "old W": shared["W"], "mixing W": np.ones_like(shared["W"])}


def of_shift(sites: list[Site], shared: Params, own: Params) -> tuple[Params, Params]:
    return {**shared, "F": np.zeros(4), "k": np.zeros(())}, {**own, "shift": np.zeros(4)}


def of_previous(sites: list[Site], shared: Params, own: Params) -> tuple[Params, Params]:
    backbone = {n: w for n, w in {**shared, **own}.items() if n != "W"}
    return shared, {**own, **called("previous ", backbone)}


def of_classes(sites: list[Site], shared: Params, own: Params) -> tuple[Params, Params]:
    return {"P": np.zeros((6, 4)), "k": np.zeros(6)}, {**shared, **own}


def of_combined_heads(sites: list[Site], shared: Params, own: Params) -> tuple[Params, Params]:
    return {**shared, "P": np.zeros((6, 4)), "k": np.zeros(6)}, {**own, "W": shared["W"]}


@dataclass(frozen=True)
class Case:
    """A method twice: as the package has it, and what NumPy plays."""

    algorithm: pflego.Algorithm
    client: Method
    server: Server = add
    start: Callable[..., tuple[Params, Params]] = (
        nothing_more  # of all that is shared and kept: what is at first
    )
    exchanges: int = 1
    tolerance: float = 1e-10


_SGD: dict[str, Any] = {"server_optimizer": "sgd", "server_lr": 0.2}
_EPOCH: dict[str, Any] = {**{k: v for k, v in PLAIN.items() if k != "steps"}, "epochs": 1}
_NO_STEPS: dict[str, Any] = {k: v for k, v in PLAIN.items() if k != "steps"}

CASES: dict[str, Case] = {
    "fedavg": Case(pflego.FedAvg(**PLAIN), averaging),
    "fedopt": Case(
        pflego.FedOpt(**PLAIN, server_optimizer="yogi", server_lr=0.2),
        averaging,
        but_statistics(fedopt("yogi", 0.2)),
    ),
    "fednova": Case(pflego.FedNova(**_EPOCH), fednova, but_statistics(mean_length)),
    "fedsgd": Case(pflego.FedSGD(**_NO_STEPS), fedsgd, but_statistics(gradient_step(BETA))),
    "feddane": Case(pflego.FedDane(**PLAIN, mu=0.7), feddane, gradient_first, exchanges=2),
    "uga, first order": Case(
        pflego.UGA(**PLAIN, **_SGD, order="first"), uga_first, but_statistics(gradient_step(0.2))
    ),
    "uga": Case(
        pflego.UGA(**{**PLAIN, "batch_size": UGA_SIZE}, **_SGD),
        uga_second,
        but_statistics(gradient_step(0.2)),
        tolerance=1e-6,
    ),
    "perfedavg": Case(pflego.PerFedAvg(**PLAIN, inner_lr=0.2, delta=0.01), perfedavg),
    "pfedme": Case(
        pflego.PFedMe(**PLAIN, inner_steps=2, mu=0.8, local_lr=0.4, server_lr=0.7),
        pfedme,
        but_statistics(share_of_the_way(0.7)),
        of_own_model,
    ),
    "scaffold": Case(
        pflego.Scaffold(**PLAIN, server_lr=0.8),
        scaffold,
        but_statistics(scaffold_server(0.8)),
        zeros_of("control ", common=True),
    ),
    "feddyn": Case(
        pflego.FedDyn(**PLAIN, mu=0.4), feddyn, but_statistics(feddyn_server(0.4)), zeros_of("slope ")
    ),
    "apfl": Case(pflego.APFL(**PLAIN), apfl, start=of_mixture),
    "lgfedavg": Case(pflego.LGFedAvg(**PLAIN), lgfedavg, start=of_shared_head),
    "fedrod": Case(pflego.FedRoD(**PLAIN), fedrod, start=of_two_heads),
    "fedala": Case(pflego.FedALA(**PLAIN), fedala, start=of_old_head),
    "feddbe": Case(pflego.FedDBE(**PLAIN, kappa=2.0, mean_share=0.7), feddbe, first_mean, of_shift),
    "moon": Case(pflego.MOON(**PLAIN, mu=2.0), moon, start=of_previous),
    "fedproto": Case(pflego.FedProto(**PLAIN, mu=0.8), fedproto, new_means, of_classes),
    "fedpac": Case(pflego.FedPAC(**PLAIN, mu=0.8, body_steps=2), fedpac, combine_heads, of_combined_heads),
}
