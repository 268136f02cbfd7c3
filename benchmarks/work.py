"""What is measured: federations of random numbers, rounds, and the passes they are held against."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn

import pflego
from pflego.federation.roster import ClientId
from pflego.learning.problem import Speedup

MLP, CIFAR, OMNIGLOT = (784,), (32, 32, 3), (28, 28)
MODELS = {MLP: "mlp", CIFAR: "cifar-cnn", OMNIGLOT: "omniglot-conv4"}
Work = Callable[[], float]  # does something once and gives the seconds it took


def federation(shape: Sequence[int] = MLP, *, clients: int, samples: int, classes: int) -> pflego.Federation:
    """Make clients with random inputs of a shape, and as many samples of each class."""
    rng = np.random.default_rng(0)
    labels = np.arange(samples) % classes
    return pflego.Federation(
        [pflego.Client(i, rng.random((samples, *shape), dtype=np.float32), labels) for i in range(clients)]
    )


def population(clients: int, *, samples: int = 600) -> pflego.Federation:
    """Give any number of clients, each of which is made when it is asked for."""
    pool = np.random.default_rng(0).random((2 * samples, *MLP), dtype=np.float32)
    labels = np.arange(samples) % 2

    def load(client_id: ClientId) -> pflego.Client:
        first = int(client_id) % samples
        return pflego.Client(client_id, pool[first : first + samples], labels)

    return pflego.Federation.lazy(
        range(clients), load, sizes=np.full(clients, samples), classes=[0, 1], most_classes=2
    )


def model(shape: Sequence[int] = MLP) -> pflego.Model:
    """Give the paper's network for inputs of a shape."""
    return pflego.models.build(MODELS[tuple(shape)], shape)


def rounds(
    fed: pflego.Federation,
    algorithm: pflego.Algorithm,
    *,
    shape: Sequence[int] = MLP,
    participation: int | None = None,
    number: int = 3,
    speedup: Speedup = "none",
) -> Work:
    """Train a few rounds; the median of their seconds, without the first, which pays for first times."""

    def work() -> float:
        run = pflego.train(
            fed,
            model(shape),
            algorithm,
            rounds=number + 1,
            participation=participation or len(fed),
            evaluate_every=None,
            speedup=speedup,
        )
        return median(row["seconds"] or 0.0 for row in run.history[1:])

    return work


def plain_pass(fed: pflego.Federation, *, shape: Sequence[int] = MLP, batch: int | None = None) -> Work:
    """One forward and one backward pass over all clients' data, in batches of a size or a client at a time.

    It is what an exact gradient costs at least: nobody's head is trained.
    """
    backbone = model(shape)
    network = nn.Sequential(backbone.backbone, nn.Linear(backbone.features, int(fed.most_classes or 1)))
    x, y = (torch.cat([getattr(client, name) for client in fed]) for name in ("x_train", "y_train"))
    batches = list(zip(*(torch.split(t, batch or len(fed[0].x_train)) for t in (x, y)), strict=True))
    return timed(lambda: _descend(network, batches, steps=1, rate=0.0))


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


def ratio(one: Work, other: Work, repeats: int) -> float:
    """How much longer one takes than the other: the median over pairs, one after the other, after a first pair."""
    one(), other()
    return median(one() / other() for _ in range(repeats))


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
