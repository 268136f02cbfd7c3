"""What a kit says beside its graphs: all that a client's round depends on, in one JSON file.

docs/kit.md explains every entry, and what a client computes from it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from math import isinf
from typing import Any

import torch

from pflego.after.kit.graphs import FEATURES, GRADIENT, INPUT, KEPT, SLOPE
from pflego.algorithms.base import Algorithm
from pflego.algorithms.fedavg import FedAvg
from pflego.algorithms.fedper import FedPer
from pflego.algorithms.fedprox import FedProx
from pflego.algorithms.fedrep import FedRep
from pflego.algorithms.local_steps import LocalSteps
from pflego.algorithms.pflego import PFLEGO
from pflego.algorithms.registry import spelling
from pflego.declaration import arguments, declared
from pflego.errors import ModelError, SettingError, UserError
from pflego.learning.heads import LinearHead
from pflego.learning.heads.bound import LEAST_SPREAD
from pflego.learning.model import Model
from pflego.learning.streaming import Streaming
from pflego.learning.theory import ITERATIONS, first_vector

FORMAT = "pflego kit 2"
METHODS: tuple[type[Algorithm], ...] = (PFLEGO, FedAvg, FedProx, FedPer, FedRep)
# what neither the names and shapes of theta nor the digest of frozen weights tell of a backbone
_OF_LAYERS = ("image_size", "lora", "lora_alpha")
_HEADS = ("zeros", "uniform", "centred", "layer")  # that a client without torch can draw


def check_supported(model: Model, algorithm: Algorithm) -> None:
    """Refuse what a light client does not do, and say what to do about it."""
    if type(algorithm) not in METHODS:
        known = ", ".join(kind.__name__.lower() for kind in METHODS)
        raise SettingError(
            f"a light client plays {known}, and not {algorithm.name}: its clients must be full ones"
        )
    algorithm.check_model(model)
    if not isinstance(model.head(2), LinearHead):
        raise ModelError("a light client has linear heads: leave out head=, or let its clients be full ones")
    if model.live:
        name, layer = next(iter(model.live.items()))
        raise ModelError(
            f"the layer {name} ({type(layer).__name__}) does something else in training than in evaluation, which a "
            "graph cannot: backbone.eval(), or norm='frozen' or 'group' for batch norm"
        )
    if model.personal_names or model.personal_head:
        raise ModelError("a light client keeps its head, and no other personal part: leave out personal=")
    start = algorithm.settings().get("head_init")
    if start is not None and start not in _HEADS:
        raise SettingError(f"a light client draws heads that start as {', '.join(_HEADS)}, not {start}")
    _check_rates(algorithm)


def _check_rates(algorithm: Algorithm) -> None:
    """Refuse rates that are measured by second derivatives of the backbone, which a kit has not."""
    if isinstance(algorithm, PFLEGO):
        if algorithm.server_lr == "auto":
            raise SettingError(
                "server_lr='auto' measures the curvature of the whole backbone, which a light client cannot: give a "
                "number (pflego theory shows what the measured one is)"
            )
        if algorithm.at_home:
            raise SettingError(
                "a light client makes one pass over all samples per round: leave out passes= and batch_size="
            )
    if isinstance(algorithm, LocalSteps) and algorithm.client_lr == "auto":
        raise SettingError(
            f"client_lr='auto' of {algorithm.name} measures the curvature of the whole backbone, which a light client "
            "cannot: give a number"
        )


def spec_of(
    model: Model,
    algorithm: Algorithm,
    *,
    shape: Sequence[int],
    dtype: str,
    seed: int,
    streaming: Streaming,
    task: str | None,
    classes: Sequence[int],
    files: Mapping[str, Mapping[str, object]],
    error: float,
    versions: Mapping[str, str],
) -> dict[str, object]:
    """Collect what a client needs to know.

    shape, dtype: of a sample as clients store it. task: None where it is not known before the clients are.
    """
    settings = all_settings(model, algorithm, seed, streaming)
    samples = torch.zeros((8, *shape), dtype=getattr(torch, dtype))
    prepared = model.prepare(samples).dtype
    return {
        "format": FORMAT,
        "versions": dict(versions),
        "files": dict(files),
        "largest_error": error,
        "backbone": {
            "model": str(model.source["model"]),
            "features": model.features,
            "dtype": _name(model.dtype),
            "base": model.base,
            "parameters": [
                {"name": name, "shape": list(tensor.shape)} for name, tensor in model.shared_weights().items()
            ],
        },
        "inputs": {
            "shape": list(shape),
            "stored": dtype,
            "dtype": _name(prepared),
            "divide_by": 255 if dtype == "uint8" else 1,
        },
        "names": {"input": INPUT, "slope": SLOPE, "features": FEATURES, "gradient": GRADIENT, "kept": KEPT},
        "memory": {
            "limit": None if isinf(limit := streaming.budget.limit) else limit,
            "sample": model.activation_bytes(samples),
            "slice": streaming.slice_size,
            "usual_slice": model.slice,
        },
        "task": task,
        "classes": list(classes),
        "labels": algorithm.labels,
        "shares_head": isinstance(algorithm, FedAvg)
        or (isinstance(algorithm, PFLEGO) and algorithm.common_head),
        "method": {"name": algorithm.name, **_resolved(algorithm)},
        "seed": seed,
        "smoothness": {
            "iterations": ITERATIONS,
            "curvature": {"classification": 0.5, "regression": 1.0},
            "least": LEAST_SPREAD,
            "start": [float(value) for value in first_vector(model.features + 1)],
        },
        "settings": settings,
        "unsaid": _unsaid(algorithm, settings, seed),
    }


def all_settings(model: Model, algorithm: Algorithm, seed: int, streaming: Streaming) -> dict[str, object]:
    """Map name to value for all that a run config may say of a client's work."""
    return {
        "algorithm": spelling(type(algorithm)),
        **algorithm.settings(),
        "model": str(model.source["model"]),
        "model_seed": model.source.get("model_seed", seed),
        "personal": None,
        "norm": model.norm,
        **{name: model.source.get(name) for name in _OF_LAYERS},
        "seed": seed,
        **asdict(streaming),
    }


def as_json(spec: Mapping[str, object]) -> bytes:
    """Write a spec as a file."""
    return f"{json.dumps(spec, indent=1, ensure_ascii=False)}\n".encode()


def _resolved(algorithm: Algorithm) -> dict[str, object]:
    """Give a method's settings with what it makes of those that were left out."""
    settings = algorithm.settings()
    if isinstance(algorithm, LocalSteps) and settings.get("head_init") is None:
        settings["head_init"] = "centred"
    if isinstance(algorithm, FedRep):
        settings["body_steps"] = algorithm.body
    return settings


def _unsaid(algorithm: Algorithm, settings: Mapping[str, object], seed: int) -> dict[str, object]:
    """Map name to the value that a setting has in a run config that does not say it, all else being as it is."""
    kind: Callable[..., Algorithm] = type(algorithm)
    own = {name: settings[name] for name in declared(type(algorithm))}
    found: dict[str, object] = {"algorithm": "pflego", "model": "mlp", "model_seed": seed, "seed": 0}
    found |= {"personal": None, "norm": None, **dict.fromkeys(_OF_LAYERS), **asdict(Streaming())}
    for name in own:
        others: dict[str, Any] = {other: value for other, value in own.items() if other != name}
        try:
            found[name] = kind(**arguments(kind, others)).settings()[name]
        except UserError:  # not without it
            found[name] = None
    return found


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
