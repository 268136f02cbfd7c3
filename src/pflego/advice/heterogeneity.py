"""How different clients are: in their labels, in their inputs, and in what they ask of shared weights.

Every figure stands beside what it would be by chance, if clients were alike and only drew different samples. Small
clients look different from each other even where nothing but chance made them so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch

from pflego.advice.statistics import (
    Chance,
    Floats,
    Integers,
    Interval,
    beside_chance,
    interval_of,
    of_pairs,
    pair_mean,
)
from pflego.algorithms.base import Algorithm
from pflego.federation.roster import Client, Federation
from pflego.learning.model import Model
from pflego.learning.problems import Problems
from pflego.randomness import numpy_generator
from pflego.weights import Weights

MOST_BESIDE = 100  # that are set beside each other
_MOST_SAMPLES = 100  # of a client, for its inputs
_MOST_NUMBERS = 10**8  # of gradients, in memory at once
_CELLS = 64  # in which the targets of a regression are counted, to compare their distributions
_KINDS = 5  # in which they are counted to say which targets are alike
_UNEQUAL = 0.4  # the Gini coefficient from which on sizes are said to differ
_NOISE = 0.1  # where the halves of a client agree less than this, their gradients are noise


Kind: TypeAlias = Literal["labels", "inputs", "meaning", "inputs or meaning", "sizes"]


@dataclass(frozen=True)
class Agreement:
    """The mean cosine between gradients of the same shared weights, each from half of a client's samples."""

    between: float  # halves of different clients
    interval: Interval
    within: float  # the two halves of one client: what noise leaves where the clients are alike

    @property
    def share(self) -> float | None:
        """How much of what noise leaves is there: 1 as if clients were alike, 0 nothing, below 0 they pull apart.

        None where noise leaves nothing.
        """
        return self.between / self.within if self.within > _NOISE else None


@dataclass(frozen=True)
class Differences:
    """How different clients are."""

    clients: int  # that were set beside each other
    labels: Chance  # the mean distance of label distributions
    labels_interval: Interval
    inputs: Chance | None  # of one label; None where no label is found with two clients
    all_inputs: Chance | None  # whatever their labels; None where inputs do not scatter
    sizes: float  # the Gini coefficient of training samples: 0 all have as many, 1 one has all
    own_heads: dict[int, Agreement]  # by round: on the backbone, each client with a head of its own
    one_model: dict[int, Agreement]  # by round: on backbone and head, one head for all

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What differs: nothing, or some of labels, inputs, meaning (of labels), inputs or meaning, sizes.

        Inputs of one label differ where clients see other inputs, and where the same inputs have other labels. In the
        first case all inputs differ too, in the second they do not; unless labels differ, which moves them by itself.
        """
        found: list[Kind] = ["labels"] if self.labels.real else []
        if self.inputs is not None and self.inputs.real:
            moved = self.all_inputs is not None and self.all_inputs.real
            found.append("inputs or meaning" if moved and found else "inputs" if moved else "meaning")
        return (*found, "sizes") if self.sizes > _UNEQUAL else tuple(found)


def label_distance(federation: Federation, *, seed: int) -> tuple[Chance, Interval]:
    """Compute the mean distance between two clients' labels: 0 the same distribution, 1 nothing in common.

    In classification the total variation, half the sum of the differences of shares. In regression the largest
    difference of the distribution functions (Kolmogorov and Smirnov), a mean over outputs.
    """
    owners = _owners(federation)
    cells = _cells(federation, _CELLS)  # (outputs, samples)
    ordered = federation.classes is None

    def distances(order: Integers) -> Floats:
        shares = np.stack([_shares(owners, row[order]) for row in cells])  # (outputs, clients, cells)
        apart = kolmogorov(shares) if ordered else total_variation(shares)
        return np.asarray(apart.mean(axis=0))

    def dealt(generator: np.random.Generator) -> float:
        return pair_mean(distances(generator.permutation(len(owners))))

    found = distances(np.arange(len(owners)))
    interval = interval_of(of_pairs(found, seed=seed), len(federation))
    return beside_chance(pair_mean(found), dealt, seed=seed), interval


def total_variation(shares: Floats) -> Floats:
    """Compute half the sum of the absolute differences, between every two rows.

    >>> total_variation(np.array([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5]]))[0].tolist()
    [0.0, 0.5]
    """
    return np.asarray(np.abs(shares[..., :, None, :] - shares[..., None, :, :]).sum(axis=-1) / 2)


def kolmogorov(shares: Floats) -> Floats:
    """Compute the largest difference of the running sums, between every two rows.

    >>> kolmogorov(np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]))[0].tolist()
    [0.0, 0.5]
    """
    below = np.cumsum(shares, axis=-1)
    return np.asarray(np.abs(below[..., :, None, :] - below[..., None, :, :]).max(axis=-1))


@torch.no_grad()
def input_shift(federation: Federation, model: Model, *, seed: int, by_label: bool = True) -> Chance | None:
    """Compute the client's share in the spread of inputs, of one label or of all: 0 none beyond chance, 1 all of it.

    Inputs are taken as the untrained backbone sees them. Within a label, R^2 = between clients / all, of squared
    distances from means, is (k - 1) / (n - 1) on average where chance deals n samples to k clients; what is given is
    (R^2 - that) / (1 - that). It sees clients whose inputs lie elsewhere, not those whose inputs only scatter more.
    None where no label is found with two clients.
    """
    kept = Federation([_some(client, seed) for client in federation], schema=federation.schema)
    weights = model.weights()
    seen = torch.cat([_features(model, weights, client) for client in kept]).double().numpy()
    everybody = _owners(kept)
    kinds = _cells(kept, _KINDS)[0] if by_label else np.zeros_like(everybody)
    groups = []
    for kind in np.unique(kinds):
        mine = kinds == kind
        holders, owners = np.unique(everybody[mine], return_inverse=True)
        if 1 < len(holders) < len(owners):
            groups.append((seen[mine] - seen[mine].mean(axis=0), owners))
    whole = [float((x**2).sum()) for x, _ in groups]
    expected: float = sum(
        total * owners.max() / (len(owners) - 1) for total, (_, owners) in zip(whole, groups, strict=True)
    )
    if sum(whole) <= expected:  # no label found with two clients, or inputs that do not scatter
        return None

    def shift(between: float) -> float:
        return (between - expected) / (sum(whole) - expected)

    def dealt(generator: np.random.Generator) -> float:
        return shift(sum(_between(x, generator.permutation(owners)) for x, owners in groups))

    return beside_chance(shift(sum(_between(*group) for group in groups)), dealt, seed=seed)


def agreements(
    federation: Federation,
    model: Model,
    algorithm: Algorithm,
    round_number: int,
    shared: Weights,
    *,
    seed: int,
) -> dict[int, Agreement]:
    """Map round to how far gradients agree: at first and after one round, where that can be said."""
    first = algorithm.init_shared(model, federation.outputs, seed)
    found = {0: agreement(federation, model, algorithm, first, seed=seed)}
    found[round_number] = agreement(federation, model, algorithm, shared, seed=seed)
    return {number: own for number, own in found.items() if own is not None}


def agreement(
    federation: Federation, model: Model, algorithm: Algorithm, shared: Weights, *, seed: int
) -> Agreement | None:
    """Measure how far clients' gradients at these shared weights agree, beside how far noise lets them.

    Each client's samples are divided in two halves, and each half does what a client does: it fits what the method
    lets it fit, and gives the gradient of what is shared. A client that asks for nothing, since its gradient is zero,
    is left out. None where fewer than two clients remain.
    """
    names = list(shared)
    most = max(4, _MOST_NUMBERS // (2 * sum(weight.numel() for weight in shared.values())))
    halves = [_halves(client, seed) for client in federation if len(client.x_train) > 1][:most]
    if not halves:
        return None
    members = [half for pair in halves for half in pair]
    problems = Problems(Federation(members, schema=federation.schema), model, labels=algorithm.labels)
    gradients = np.stack(
        [_gradient(problems, position, algorithm, shared, names) for position in range(len(members))]
    )  # (2 * clients, numbers)
    lengths = np.linalg.norm(gradients, axis=1).reshape(-1, 2).min(axis=1)
    asking = np.repeat(np.isfinite(lengths) & (lengths > 0), 2)
    if asking.sum() < 4:
        return None
    first, second = gradients[asking][::2], gradients[asking][1::2]
    cosines = cosine(first, second)  # (clients, clients)
    both_ways = (cosines + cosines.T) / 2
    interval = interval_of(of_pairs(both_ways, seed=seed), len(cosines))
    return Agreement(pair_mean(both_ways), interval, float(np.diag(cosines).mean()))


def cosine(first: Floats, second: Floats) -> Floats:
    """Compute the cosine of the angle between every row of one and every row of the other.

    >>> cosine(np.array([[1.0, 1.0]]), np.array([[1.0, 0.0], [-3.0, -3.0]])).round(4).tolist()
    [[0.7071, -1.0]]
    """
    lengths = np.linalg.norm(first, axis=1)[:, None] * np.linalg.norm(second, axis=1)
    return np.asarray(first @ second.T / lengths)


def _gradient(
    problems: Problems, position: int, algorithm: Algorithm, shared: Weights, names: Sequence[str]
) -> Floats:
    problem = problems[position]
    first = algorithm.init_state(problem, 0)
    # heads are fitted, and what is shared stays where it is: there the gradients are to be compared
    state = (
        {name: w for name, w in algorithm.adapt(shared, first, problem).items() if name in first}
        if first
        else {}
    )
    gradient = problem.gradient(algorithm.personal(shared, state, problem))
    return np.asarray(torch.cat([gradient[name].reshape(-1) for name in names]).double().cpu().numpy())


def _halves(client: Client, seed: int) -> tuple[Client, Client]:
    """Split a client in two, the samples of every class as evenly as can be."""
    shuffled = numpy_generator(seed, "halves", client=client.id).permutation(len(client.y_train))
    if not client.y_train.is_floating_point():
        shuffled = shuffled[np.argsort(client.y_train.numpy()[shuffled], kind="stable")]
    first, second = (
        Client(
            f"{client.id} {name}", client.x_train[own], client.y_train[own], weights=client.weights_of(own)
        )
        for name, own in (("a", shuffled[::2]), ("b", shuffled[1::2]))
    )
    return first, second


def _some(client: Client, seed: int) -> Client:
    """Draw at most _MOST_SAMPLES of a client's samples."""
    if len(client.x_train) <= _MOST_SAMPLES:
        return client
    drawn = numpy_generator(seed, "some", client=client.id).permutation(len(client.x_train))[:_MOST_SAMPLES]
    weights = client.weights_of(drawn)
    return Client(client.id, client.x_train[drawn], client.y_train[drawn], weights=weights)


def _features(model: Model, weights: Weights, client: Client) -> torch.Tensor:
    parts = torch.split(client.x_train, model.slice or len(client.x_train))
    return torch.cat([model.phi(weights, model.prepare(part)) for part in parts])


def _owners(federation: Federation) -> Integers:
    """Return the position of each sample's client."""
    return np.repeat(np.arange(len(federation)), [len(client.x_train) for client in federation])


def _cells(federation: Federation, most: int) -> Integers:
    """Number labels from 0 on, (outputs, samples): the class, or a part of the range of targets."""
    labels = torch.cat([client.y_train for client in federation])
    if federation.classes is not None:
        return np.searchsorted(federation.classes, labels.numpy())[None]
    columns = labels.reshape(len(labels), -1).double().numpy().T
    levels = np.linspace(0, 1, most + 1)[1:-1]
    return np.stack([np.searchsorted(np.quantile(column, levels), column) for column in columns])


def _shares(owners: Integers, cells: Integers) -> Floats:
    """Compute the share of each client's samples in each cell, (clients, cells)."""
    clients, width = owners.max() + 1, cells.max() + 1
    counts = np.bincount(owners * width + cells, minlength=clients * width).reshape(clients, width)
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def _between(x: Floats, owners: Integers) -> float:
    """Sum the squared distances of the clients' means from the mean, one term per sample. x has mean zero."""
    counts = np.bincount(owners)
    sums = np.add.reduceat(x[np.argsort(owners, kind="stable")], np.cumsum(counts) - counts)
    return float(((sums**2).sum(axis=1) / counts).sum())
