"""Seconds of a FedAvg round in FedJAX: its own algorithm, every step compiled.

By "jit" clients take turns and XLA spreads a step over the cores; by "pmap" every core is a device with a client.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import fedjax  # type: ignore[import-not-found]
import haiku  # type: ignore[import-not-found]
import jax  # type: ignore[import-not-found]
import numpy as np

from benchmarks.rivals.setting import HIDDEN, RATE, Setting


def model_of(setting: Setting) -> Any:
    """The MLP and its loss."""

    def forward(batch: Any) -> Any:
        hidden = jax.nn.relu(haiku.Linear(HIDDEN, name="hidden")(batch["x"]))
        return haiku.Linear(setting.classes, name="output")(hidden)

    def loss(batch: Any, outputs: Any) -> Any:
        return fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], outputs)

    x, y = setting.data()[0]
    return fedjax.create_model_from_haiku(haiku.transform(forward), {"x": x, "y": y}, loss)


def seconds_a_round(setting: Setting, way: str) -> list[float]:
    """Train, check the first round, which also compiles, and give the seconds of the others."""
    if way == "pmap":  # read when JAX first computes something
        devices = min(os.cpu_count() or 1, setting.clients)
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    fedjax.set_for_each_client_backend(way)
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model_of(setting)),
        client_optimizer=fedjax.optimizers.sgd(RATE),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(
            batch_size=setting.batch, num_epochs=setting.epochs, skip_shuffle=True
        ),
    )
    keys = jax.random.split(jax.random.PRNGKey(0), setting.clients)
    datasets = [fedjax.ClientDataset({"x": x, "y": y}) for x, y in setting.data()]
    clients = list(zip(range(setting.clients), datasets, keys, strict=True))
    w, b, v, c = setting.start()
    state = algorithm.init(jax.device_put({"hidden": {"w": w, "b": b}, "output": {"w": v, "b": c}}))
    seconds, models = [], []
    for _ in range(setting.rounds + 1):
        start = time.perf_counter()
        state, diagnostics = algorithm.apply(state, clients)
        jax.block_until_ready((state, diagnostics))
        seconds.append(time.perf_counter() - start)
        models.append(state.params)
    setting.check(
        [np.asarray(models[0][layer][name]) for layer in ("hidden", "output") for name in ("w", "b")]
    )
    return seconds[1:]


if __name__ == "__main__":
    print(json.dumps(seconds_a_round(*Setting.from_command_line(__doc__, ["jit", "pmap"]))))
