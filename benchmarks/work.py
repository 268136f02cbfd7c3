"""What is measured: federations of random numbers, rounds, and the passes they are held against."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import pflego
from pflego.federation.roster import ClientId
from pflego.learning.problems import Problems
from pflego.learning.streaming import Speedup
from pflego.runs.history import HistoryRow

MLP, CIFAR, OMNIGLOT = (784,), (32, 32, 3), (28, 28)
MODELS = {MLP: "mlp", CIFAR: "cifar-cnn", OMNIGLOT: "omniglot-conv4"}
Work = Callable[[], float]  # does something once and gives the seconds it took


def federation(
    shape: Sequence[int] = MLP, *, clients: int, samples: int, classes: int, tests: int = 0
) -> pflego.Federation:
    """Make clients with random inputs of a shape, and as many samples of each class."""
    rng = np.random.default_rng(0)

    def drawn(count: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        return rng.random((count, *shape), dtype=np.float32), np.arange(count) % classes

    return pflego.Federation([pflego.Client(i, *drawn(samples), *drawn(tests)) for i in range(clients)])


def population(clients: int, *, samples: int = 600, pool: int = 1200) -> pflego.Federation:
    """Give any number of clients, each of which is made when it is asked for, of rows of a pool."""
    rows = np.random.default_rng(0).random((pool, *MLP), dtype=np.float32)
    labels = np.arange(samples) % 2

    def load(client_id: ClientId) -> pflego.Client:
        first = int(client_id) * 7 % (pool - samples)
        return pflego.Client(client_id, rows[first : first + samples], labels)

    return pflego.Federation.lazy(
        range(clients), load, sizes=np.full(clients, samples), classes=[0, 1], most_classes=2
    )


def model(shape: Sequence[int] = MLP, *, trained: str | None = None) -> pflego.Model:
    """Give the paper's network for inputs of a shape, all of it trained or some parts alone."""
    return pflego.models.build(MODELS[tuple(shape)], shape, trained=trained)


def rounds(
    fed: pflego.Federation,
    algorithm: pflego.Algorithm,
    *,
    shape: Sequence[int] = MLP,
    participation: int | None = None,
    number: int = 3,
    speedup: Speedup = "none",
    trained: str | None = None,
    whole: bool = False,
) -> Work:
    """Train a few rounds; the median of their seconds, without the first, which pays for first times.

    whole: all of a round, from drawing the cohort on; otherwise what clients and server do in it.
    """

    def work() -> float:
        watch = Stopwatch()
        run = pflego.train(
            fed,
            model(shape, trained=trained),
            algorithm,
            rounds=number + 1,
            participation=participation or len(fed),
            evaluate_every=None,
            speedup=speedup,
            callbacks=[watch],
        )
        return median(watch.seconds[1:] if whole else [row["seconds"] or 0.0 for row in run.history[1:]])

    return work


def plain_pass(fed: pflego.Federation, *, shape: Sequence[int] = MLP, batch: int | None = None) -> Work:
    """One forward and one backward pass over all clients' data, in batches of a size or a client at a time.

    It is what an exact gradient costs at least: nobody's head is trained.
    """
    backbone = model(shape)
    network = nn.Sequential(backbone.backbone, nn.Linear(backbone.features, int(fed.most_classes or 1)))
    return _pass(network, list(fed), batch)


def _pass(network: nn.Module, clients: Sequence[pflego.Client], batch: int | None) -> Work:
    x, y = (torch.cat([getattr(client, name) for client in clients]) for name in ("x_train", "y_train"))
    batches = list(zip(*(torch.split(t, batch or len(clients[0].x_train)) for t in (x, y)), strict=True))
    return timed(lambda: _descend(network, batches, steps=1, rate=0.0))


def pass_behind_trunk(
    fed: pflego.Federation, *, shape: Sequence[int], trained: str, batch: int | None
) -> Work:
    """One plain pass each way over the trained part of a network, from the outputs of its trunk."""
    trunk = (whole := model(shape, trained=trained)).trunk
    assert trunk is not None
    problems = Problems(fed, whole)
    clients = [
        pflego.Client(client.id, problems[place].x.clone(), client.y_train)
        for place, client in enumerate(fed)
    ]
    network = nn.Sequential(trunk.rest.backbone, nn.Linear(whole.features, int(fed.most_classes or 1)))
    return _pass(network, clients, batch)


def plain_batches(samples: int, *, batch: int) -> Work:
    """One forward and one backward pass of the MLP with two outputs over so many samples, the same batch every time."""
    network = nn.Sequential(model(MLP).backbone, nn.Linear(model(MLP).features, 2))
    x, y = torch.rand(batch, *MLP), torch.arange(batch) % 2
    return timed(lambda: _descend(network, [(x, y)] * (samples // batch), steps=1, rate=0.0))


def plain_loop(fed: pflego.Federation, *, shape: Sequence[int], steps: int) -> Work:
    """FedAvg's client work as a plain PyTorch loop: full batches, a client after the other, default layout."""
    network, clients = _plain_network(fed, shape), _plain_clients(fed, shape)

    def work() -> None:
        for client in clients:
            _descend(network, [client], steps=steps, rate=0.01)

    return timed(work)


def plain_epochs(fed: pflego.Federation, *, shape: Sequence[int] = MLP, batch: int, epochs: int) -> Work:
    """FedAvg's client work by mini-batches as a plain PyTorch loop, shuffled anew in every epoch."""
    network, clients = _plain_network(fed, shape), _plain_clients(fed, shape)
    optimizer, loss = torch.optim.SGD(network.parameters(), lr=0.01), nn.CrossEntropyLoss()

    def work() -> None:
        for x, y in clients:
            for _ in range(epochs):
                for chosen in torch.split(torch.randperm(len(x)), batch):
                    optimizer.zero_grad()
                    loss(network(x[chosen]), y[chosen]).backward()
                    optimizer.step()

    return timed(work)


def _plain_network(fed: pflego.Federation, shape: Sequence[int]) -> nn.Module:
    """Give the network as the paper has it, and as everybody writes it: ReLU before pooling, colours first."""
    backbone = model(shape)
    layers = list(backbone.backbone.children())
    if len(shape) == 3:
        layers = layers[1:]  # images come in colours first
    for place in [i for i, layer in enumerate(layers) if isinstance(layer, nn.MaxPool2d)]:
        layers[place], layers[place + 1] = layers[place + 1], layers[place]
    return nn.Sequential(*layers, nn.Linear(backbone.features, int(fed.most_classes or 1)))


def _plain_clients(fed: pflego.Federation, shape: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    images = len(shape) == 3
    return [(c.x_train.permute(0, 3, 1, 2).contiguous() if images else c.x_train, c.y_train) for c in fed]


def timed(work: Callable[[], None]) -> Work:
    """Give work that says how long it took."""

    def measured() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return measured


class Stopwatch(pflego.Callback):
    """Notes how long every round took."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last = 0.0

    def on_start(self, run: pflego.Run) -> None:
        """Start."""
        self._last = time.perf_counter()

    def on_round(self, run: pflego.Run, row: HistoryRow) -> None:
        """Stop, and start again."""
        now = time.perf_counter()
        self.seconds.append(now - self._last)
        self._last = now


def ratios(one: Work, other: Work, repeats: int) -> list[float]:
    """How much longer one takes than the other: of pairs, one after the other, after a first pair."""
    one(), other()
    return [one() / other() for _ in range(repeats)]


def fastest(candidates: Sequence[Work]) -> Work:
    """Choose the work that takes the least time, the better of two tries each."""
    return min(candidates, key=lambda work: min(work(), work()))


def _descend(
    network: nn.Module, batches: Sequence[tuple[Tensor, Tensor]], *, steps: int, rate: float
) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        for x, y in batches:
            nn.functional.cross_entropy(network(x), y).backward()  # type: ignore[no-untyped-call]
        if rate:
            optimizer.step()
