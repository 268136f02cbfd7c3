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
from tests.support.rivals import Simulation, batches, global_sites

TAU, BETA, SEED, ROUNDS, SIZE, P, EPS = 5, 0.3, 5, 4, 3, 0.4, 1e-5
NAMES = {"0.weight": "V", "0.bias": "v", "1.weight": "g", "1.bias": "b", "head": "W"}
NAMES |= {"1.running_mean": "m", "1.running_var": "s"}
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


@dataclass
class Pass:
    phi: F64
    loss_slope: Params  # in V, v, g, b and W
    m: F64
    s: F64


def both_ways(w: Params, site: Site, mask: F64 | None, *, training: bool = True) -> Pass:
    """Features, gradients and moved statistics; a batch of one sample is normalised with the running ones."""
    n, own = site.n, training and site.n > 1
    z = site.x @ w["V"].T + w["v"]
    mean, variance = (z.mean(axis=0), z.var(axis=0)) if own else (w["m"], w["s"])
    root = np.sqrt(variance + EPS)
    h = (z - mean) / root
    a = np.tanh(w["g"] * h + w["b"])
    factor = np.ones_like(a) if mask is None else mask / (1 - P)
    phi = a * factor
    residual = (link(phi @ w["W"][:, :-1].T + w["W"][:, -1], site.softmax) - site.t) / n
    dW = np.concatenate([residual.T @ phi, residual.sum(axis=0)[:, None]], axis=1)
    dy = (residual @ w["W"][:, :-1]) * factor * (1 - a**2)
    dh = dy * w["g"]
    dz = (dh - dh.mean(axis=0) - h * (dh * h).mean(axis=0)) / root if own else dh / root
    slope = {"V": dz.T @ site.x, "v": dz.sum(axis=0), "g": (dy * h).sum(axis=0), "b": dy.sum(axis=0), "W": dW}
    m, s = w["m"], w["s"]
    if own:
        m, s = 0.8 * m + 0.2 * mean, 0.8 * s + 0.2 * variance * n / (n - 1)
    return Pass(phi, slope, m, s)


def local_steps(
    w: Params,
    s: Simulation,
    i: int,
    *,
    count: int = TAU,
    names: str = "VvgbW",
    draw: str = "batches",
    anchor: Params | None = None,
    mu: float = 0.0,
) -> Params:
    """Steps in training mode, on the batches and with the masks of this round and client."""
    generator = torch_generator(SEED, f"dropout, {draw}", round_number=s.round, client=f"c{i}")
    for batch in batches(SEED, s.round, i, s.sites[i], SIZE, count, draw):
        mask = (torch.rand(len(batch), 4, generator=generator) >= P).numpy().astype(float)
        done = both_ways(w, s.sites[i].part(batch), mask)
        pull = {name: mu * (w[name] - anchor[name]) if anchor else 0.0 for name in names}
        stepped = {name: w[name] - BETA * (done.loss_slope[name] + pull[name]) for name in names}
        w = {**w, **stepped, "m": done.m, "s": done.s}
    return w


def averaging(kept: str, *, mu: float = 0.0) -> Callable[[Simulation, int], Params]:
    def client(s: Simulation, i: int) -> Params:
        w = (
            local_steps({**s.shared, **s.own[i]}, s, i, anchor=s.shared, mu=mu)
            if mu
            else local_steps({**s.shared, **s.own[i]}, s, i)
        )
        s.own[i] = {name: w[name] for name in kept}
        return {name: w[name] for name in s.shared}

    return client


def start(twin: World, module: nn.Sequential, kept: str, *, own_heads: bool, shares: str) -> Simulation:
    sites = twin.sites if own_heads else global_sites(twin)
    whole = [{**first(module), "W": np.zeros((site.t.shape[1], 5))} for site in sites]
    shared = {name: whole[0][name] for name in shares}
    return Simulation(sites, shared, [{name: one[name] for name in kept} for one in whole])


def assert_at(run: pflego.Run, simulation: Simulation) -> None:
    for ours, theirs in [
        (run.shared, simulation.shared),
        *((run.states[f"c{i}"], own) for i, own in enumerate(simulation.own)),
    ]:
        assert {NAMES[name] for name in ours} == set(theirs)
        for name, tensor in ours.items():
            assert distance(tensor, theirs[NAMES[name]]) < 1e-10, name
