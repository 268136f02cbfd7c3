"""A network with batch norm and dropout in NumPy float64: dropout(tanh(norm(V x + v))) and a head W, in local steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

import pflego
from pflego.randomness import torch_generator
from tests.support.reference import F64, Params, Site, World, distance, link
from tests.support.rivals import Indices, Simulation, batches, global_sites

TAU, BETA, SEED, ROUNDS, SIZE, P, EPS = 5, 0.3, 5, 4, 3, 0.4, 1e-5
NAMES = {"0.weight": "V", "0.bias": "v", "1.weight": "g", "1.bias": "b", "head": "W"}
NAMES |= {"1.running_mean": "m", "1.running_var": "s"}
NAMES |= {
    f"{prefix}/{name}": f"{prefix} {ours}"
    for prefix in ("control", "slope", "own", "old", "mixing", "previous")
    for name, ours in NAMES.items()
}
NAMES |= {"mixing": "a", "shift": "shift", "mean/features": "F", "mean/known": "k"}
NAMES |= {"class/means": "P", "class/known": "k"}
PLAIN: dict[str, Any] = {"steps": TAU, "client_lr": BETA, "batch_size": SIZE, "head_init": "zeros"}


def backbone(twin: World, *, p: float = P) -> nn.Sequential:
    torch.manual_seed(3)
    layer = nn.Linear(6, 4, dtype=torch.float64)
    layer.load_state_dict({"weight": torch.from_numpy(twin.net.V), "bias": torch.from_numpy(twin.net.v)})
    norm = nn.BatchNorm1d(4, momentum=0.2).double()
    with torch.no_grad():
        norm.weight.copy_(torch.rand(4) + 0.5)
        norm.bias.copy_(torch.rand(4))
    return nn.Sequential(layer, norm, nn.Tanh(), nn.Dropout(p))


def first(module: nn.Sequential) -> Params:
    return {
        NAMES[name]: tensor.numpy().copy() for name, tensor in module.state_dict().items() if name in NAMES
    }


Slopes = Callable[[F64, Indices], F64]  # of features and whose they are: a term's gradient in them


@dataclass
class Pass:
    """A pass through the backbone: its features, the statistics that it moved, and the way back."""

    phi: F64
    m: F64
    s: F64
    back: Callable[[F64], Params]  # from the gradient in phi to that in V, v, g and b

    @property
    def statistics(self) -> Params:
        return {"m": self.m, "s": self.s}


@dataclass
class BothWays(Pass):
    loss: float
    loss_slope: Params  # in V, v, g, b and W


def through(w: Params, site: Site, mask: F64 | None, *, training: bool = True) -> Pass:
    """Features and moved statistics; a batch of one sample is normalised with the running ones."""
    n, own = site.n, training and site.n > 1
    z = site.x @ w["V"].T + w["v"]
    mean, variance = (z.mean(axis=0), z.var(axis=0)) if own else (w["m"], w["s"])
    root = np.sqrt(variance + EPS)
    h = (z - mean) / root
    a = np.tanh(w["g"] * h + w["b"])
    factor = np.ones_like(a) if mask is None else mask / (1 - P)

    def back(slope: F64) -> Params:
        dy = slope * factor * (1 - a**2)
        dh = dy * w["g"]
        dz = (dh - dh.mean(axis=0) - h * (dh * h).mean(axis=0)) / root if own else dh / root
        return {"V": dz.T @ site.x, "v": dz.sum(axis=0), "g": (dy * h).sum(axis=0), "b": dy.sum(axis=0)}

    m, s = w["m"], w["s"]
    if own:
        m, s = 0.8 * m + 0.2 * mean, 0.8 * s + 0.2 * variance * n / (n - 1)
    return Pass(a * factor, m, s, back)


def both_ways(
    w: Params,
    site: Site,
    mask: F64 | None,
    *,
    training: bool = True,
    on_features: Callable[[F64], F64] | None = None,
) -> BothWays:
    """A pass and the gradients of the loss, and of a term of the features if there is one."""
    done = through(w, site, mask, training=training)
    phi = done.phi
    z = phi @ w["W"][:, :-1].T + w["W"][:, -1]
    loss = float((np.log(np.exp(z).sum(axis=1)) - (z * site.t).sum(axis=1)).mean())
    residual = (link(z, site.softmax) - site.t) / site.n
    dW = np.concatenate([residual.T @ phi, residual.sum(axis=0)[:, None]], axis=1)
    slope = residual @ w["W"][:, :-1] + (0 if on_features is None else on_features(phi))
    return BothWays(phi, done.m, done.s, done.back, loss, {**done.back(slope), "W": dW})


def masks(s: Simulation, i: int, draw: str = "batches") -> Callable[[int], F64]:
    """Draw masks for a number of samples, one after the other, as client i does in this round."""
    generator = torch_generator(SEED, f"dropout, {draw}", round_number=s.round, client=f"c{i}")
    return lambda n: (torch.rand(n, 4, generator=generator) >= P).numpy().astype(float)


def on_samples(term: Slopes | None, samples: Indices) -> Callable[[F64], F64] | None:
    return None if term is None else lambda phi: term(phi, samples)


def local_steps(
    w: Params,
    s: Simulation,
    i: int,
    *,
    count: int = TAU,
    names: str = "VvgbW",
    draw: str = "batches",
    size: int = SIZE,
    anchor: Params | None = None,
    mu: float = 0.0,
    slope: Params | None = None,
    on_features: Slopes | None = None,
) -> Params:
    """Steps in training mode, on the batches and with the masks of this round and client.

    What the anchor has is pulled to it by mu, and a slope is added to the gradient of what it names.
    """
    mask, site = masks(s, i, draw), s.sites[i]
    for batch in batches(SEED, s.round, i, site, size, count, draw):
        done = both_ways(w, site.part(batch), mask(len(batch)), on_features=on_samples(on_features, batch))
        stepped = {}
        for name in names:
            g = done.loss_slope[name]
            g = g + (mu * (w[name] - anchor[name]) if anchor and name in anchor else 0)
            stepped[name] = w[name] - BETA * (g + (slope[name] if slope and name in slope else 0))
        w = {**w, **stepped, **done.statistics}
    return w


def averaging(kept: str, *, mu: float = 0.0) -> Callable[[Simulation, int], Params]:
    def client(s: Simulation, i: int) -> Params:
        w = local_steps({**s.shared, **s.own[i]}, s, i, anchor=s.shared, mu=mu)
        s.own[i] = {name: w[name] for name in kept}
        return {name: w[name] for name in s.shared}

    return client


def start(twin: World, module: nn.Sequential, kept: str, *, own_heads: bool, shares: str) -> Simulation:
    sites = twin.sites if own_heads else global_sites(twin)
    whole = [{**first(module), "W": np.zeros((site.t.shape[1], 5))} for site in sites]
    shared = {name: whole[0][name] for name in shares}
    return Simulation(sites, shared, [{name: one[name] for name in kept} for one in whole])


def assert_at(run: pflego.Run, simulation: Simulation, tolerance: float = 1e-10) -> None:
    for ours, theirs in [
        (run.shared, simulation.shared),
        *((run.states[f"c{i}"], own) for i, own in enumerate(simulation.own)),
    ]:
        assert {NAMES[name] for name in ours} == set(theirs)
        for name, tensor in ours.items():
            array = theirs[NAMES[name]]
            # the gradient of a bias before batch norm is nothing but rounding
            assert distance(tensor, array) < tolerance or np.abs(tensor.numpy() - array).max() < 1e-14, name
