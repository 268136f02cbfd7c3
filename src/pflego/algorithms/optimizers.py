"""The server's optimiser, as a function from (weights, gradient, state) to (weights, state).

Any optimiser of torch.optim serves; its state is a flat dictionary like everything else, "<weight>/<quantity>".
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import torch
from torch import nn, optim

from pflego.declaration import OneOf
from pflego.weights import Weights

# LBFGS evaluates the loss again and again, SparseAdam wants sparse gradients, Muon takes matrices only.
_UNFIT = {"Optimizer", "LBFGS", "SparseAdam", "Muon"}
OPTIMIZERS: dict[str, type[optim.Optimizer]] = {
    name.lower(): kind
    for name, kind in vars(optim).items()
    if isinstance(kind, type) and issubclass(kind, optim.Optimizer) and name not in _UNFIT
}
OptimizerName: TypeAlias = Annotated[str, OneOf(tuple(OPTIMIZERS))]
ADAMS_EPS = 1e-8  # of torch.optim.Adam, where none is given


def optimizer_step(
    name: str, rate: float, weights: Weights, gradient: Weights, state: Weights, *, eps: float = ADAMS_EPS
) -> tuple[Weights, Weights]:
    """Take one step of an optimiser; eps is Adam's."""
    if name == "adam":
        return _adam(rate, eps, weights, gradient, state)
    if not weights:
        return weights, state
    parameters = {key: nn.Parameter(weight.clone()) for key, weight in weights.items()}
    optimizer = OPTIMIZERS[name](parameters.values(), lr=rate)  # type: ignore[call-arg]
    for place, tensor in state.items():
        key, _, quantity = place.rpartition("/")
        optimizer.state[parameters[key]][quantity] = tensor.clone()
    for key, parameter in parameters.items():
        parameter.grad = gradient[key]
    optimizer.step()
    stepped = {key: parameter.detach() for key, parameter in parameters.items()}
    kept = {
        f"{key}/{quantity}": value
        for key, parameter in parameters.items()
        for quantity, value in optimizer.state[parameter].items()
        if value is not None
    }
    return stepped, kept


def _adam(
    rate: float, eps: float, weights: Weights, gradient: Weights, state: Weights
) -> tuple[Weights, Weights]:
    """Step as torch.optim.Adam to the bit, without loading torch's compiler, which takes over a second."""
    beta1, beta2 = 0.9, 0.999
    stepped: Weights = {}
    kept: Weights = {}
    for key, weight in weights.items():
        g = gradient[key]
        step = state.get(f"{key}/step", torch.tensor(0.0)) + 1
        mean = torch.lerp(state.get(f"{key}/exp_avg", torch.zeros_like(g)), g, 1 - beta1)
        square = (
            state.get(f"{key}/exp_avg_sq", torch.zeros_like(g)).mul(beta2).addcmul_(g, g, value=1 - beta2)
        )
        t = step.item()
        scale = square.sqrt().div_((1 - beta2**t) ** 0.5).add_(eps)
        stepped[key] = torch.addcdiv(weight, mean, scale, value=-rate / (1 - beta1**t))
        kept |= {f"{key}/step": step, f"{key}/exp_avg": mean, f"{key}/exp_avg_sq": square}
    return stepped, kept
