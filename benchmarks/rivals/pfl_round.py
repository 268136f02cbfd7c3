"""Seconds of a FedAvg round in pfl: its own algorithm and simulated backend, with PyTorch.

By "threads" clients take turns and PyTorch spreads a step over the cores; by "processes" torchrun starts one a core and
pfl shares the clients out to them, as its guide to fast simulations has it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend  # type: ignore[import-not-found]
from pfl.aggregate.weighting import WeightByDatapoints  # type: ignore[import-not-found]
from pfl.algorithm.base import NNAlgorithmParams  # type: ignore[import-not-found]
from pfl.algorithm.federated_averaging import FederatedAveraging  # type: ignore[import-not-found]
from pfl.callback.base import TrainingProcessCallback  # type: ignore[import-not-found]
from pfl.data.dataset import Dataset  # type: ignore[import-not-found]
from pfl.data.federated_dataset import FederatedDataset  # type: ignore[import-not-found]
from pfl.data.sampling import get_user_sampler  # type: ignore[import-not-found]
from pfl.hyperparam import NNTrainHyperParams  # type: ignore[import-not-found]
from pfl.metrics import Metrics, Weighted  # type: ignore[import-not-found]
from pfl.model.pytorch import PyTorchModel  # type: ignore[import-not-found]
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record

from benchmarks.rivals.setting import HIDDEN, PIXELS, RATE, Array, Setting


class MLP(nn.Module):
    """The MLP, with the two methods pfl asks for."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.hidden = nn.Linear(PIXELS, HIDDEN)
        self.output = nn.Linear(HIDDEN, setting.classes)
        with torch.no_grad():
            for parameter, value in zip(self.parameters(), setting.start(), strict=True):
                parameter.copy_(torch.from_numpy(value.T))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs, before the softmax."""
        outputs: Tensor = self.output(self.hidden(x).relu())
        return outputs

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """What a client descends."""
        return nn.functional.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """What an evaluation gives; pfl insists on one, in the first round."""
        return {"loss": Weighted(self.loss(x, y).item() * len(x), len(x))}


class Stopwatch(TrainingProcessCallback):  # type: ignore[misc]
    """The seconds of every round, and the weights after the first."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.first: list[Array] = []
        self._start = 0.0

    def on_train_begin(self, *, model: Any) -> Any:
        """Start."""
        self._start = time.perf_counter()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Any]:
        """Stop, and start again."""
        self.seconds.append(time.perf_counter() - self._start)
        if central_iteration == 0:
            self.first = [p.detach().numpy().T.copy() for p in model.pytorch_model.parameters()]
        self._start = time.perf_counter()
        return False, Metrics()


@record
def worker(setting: Setting) -> None:
    """Train; the first process checks the first round, which is warming up, and prints the seconds of the others."""
    module = MLP(setting)
    model = PyTorchModel(
        module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), 1.0),
    )
    datasets = [Dataset((torch.from_numpy(x), torch.from_numpy(y))) for x, y in setting.data()]
    everybody = get_user_sampler("minimize_reuse", range(setting.clients))
    federation = FederatedDataset(datasets.__getitem__, everybody)
    watch = Stopwatch()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=setting.rounds + 1,
            evaluation_frequency=setting.rounds + 1,  # in round 0 alone
            train_cohort_size=setting.clients,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(federation, federation, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=setting.epochs,
            local_learning_rate=RATE,
            local_batch_size=None if setting.batch >= setting.samples else setting.batch,
        ),
        callbacks=[watch],
        send_metrics_to_platform=False,  # it would print them
    )
    if os.environ["RANK"] == "0":
        setting.check(watch.first)
        print(json.dumps(watch.seconds[1:]), flush=True)


def launch(setting: Setting, way: str) -> int:
    """Start one process, or the most that can all have equally many clients.

    Were the clients not shared out evenly, pfl's sampler would not take every one of them in every round.
    """
    threads = torch.get_num_threads()
    most = threads if way == "processes" else 1
    workers = max(n for n in range(1, most + 1) if setting.clients % n == 0)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads // workers), "PFL_PYTORCH_DEVICE": "cpu"}
    command = [*torchrun, "-m", "benchmarks.rivals.pfl_round", *sys.argv[1:]]
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    chosen, how = Setting.from_command_line(__doc__, ["threads", "processes"])
    if "TORCHELASTIC_RUN_ID" in os.environ:
        worker(chosen)
    else:
        sys.exit(launch(chosen, how))
