"""Compression against NumPy: what arrives, how far it strays, what is kept, what it weighs, with every method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil
from pathlib import Path

import numpy as np
import pytest
import torch

import pflego
from pflego.algorithms.registry import methods
from pflego.codec import MessageError, encode
from pflego.errors import SettingError
from pflego.exchange.compression import (
    Compression,
    Draw,
    Quantise,
    RandomPart,
    Sign,
    Top,
    compression_of,
    memory_of,
    pack,
    unpack,
    without_memory,
)
from pflego.exchange.round import Round
from pflego.runs.run import Run
from pflego.settings.experiment import Experiment
from pflego.weights import Weights, nbytes, weighted_sum
from tests.support.cases import often
from tests.support.reference import F64, Params, World, assert_identical, cohorts, distance, world
from tests.support.rivals import assert_at, every_method

SEED, CLIENTS, R = 3, 5, 4
NOW = Round(4, seed=SEED)
METHODS = every_method(tau=4, beta=0.15, rho=0.03, scale=CLIENTS / R, seed=SEED)
STATISTICS = {"S", "n", "h", "variance", "m", "k", "length"}  # as NumPy's rivals call what is no difference
KINDS: list[Compression] = [Quantise(8), Quantise(3), RandomPart(0.2), Top(0.1), Top(0.02), Sign()]


def numbers(size: int = 60, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=size))


def there_and_back(kind: Compression, tensor: torch.Tensor, draw: Draw) -> F64:
    return np.asarray(kind.unpack(kind.pack(tensor, draw), tensor, draw).numpy())


def over_draws(kind: Compression, tensor: torch.Tensor, draws: int) -> F64:
    """What arrives, one row per round."""
    rounds = (replace(NOW, number=t) for t in range(1, draws + 1))
    return np.stack([there_and_back(kind, tensor, Draw(now, "a", "w")) for now in rounds])


@pytest.mark.parametrize("bits", often([2, 3, 8]))
def test_a_quantised_number_is_one_of_the_two_levels_next_to_it_and_right_on_average(bits: int) -> None:
    x, draws = numbers(), 4000
    found = over_draws(Quantise(bits), x, draws)
    top, levels = np.abs(x.numpy()).max(), 2 ** (bits - 1) - 1
    step = top / levels
    lower = np.floor(x.numpy() / step + 1e-12) * step
    p = (x.numpy() - lower) / step
    assert np.abs((found - lower) * (found - lower - step)).max() < 1e-12  # no other level
    deviation = step * np.sqrt(p * (1 - p))
    assert (np.abs(found.mean(axis=0) - x.numpy()) <= 5 * deviation / draws**0.5 + 1e-12).all()
    # the variance of a variance of n draws that are p: at most (1 - 2 p)^2 p (1 - p) / n, and a little for 1/n
    spread = step**2 * np.sqrt(p * (1 - p) * (1 - 2 * p) ** 2 / draws)
    assert (np.abs(found.var(axis=0) - deviation**2) <= 5 * spread + 30 * step**2 / draws).all()


@pytest.mark.parametrize("share", often([0.05, 0.3]))
def test_a_random_part_is_right_on_average_and_strays_as_far_as_it_says(share: float) -> None:
    x, draws = numbers(), 6000
    found = over_draws(RandomPart(share), x, draws)
    k = round(share * 60)
    assert ((found != 0).sum(axis=1) == k).all()
    assert np.abs(found[found != 0] - (np.ones((draws, 1)) * x.numpy() * 60 / k)[found != 0]).max() < 1e-12
    variance = (60 / k - 1) * x.numpy() ** 2
    assert (np.abs(found.mean(axis=0) - x.numpy()) <= 5 * np.sqrt(variance / draws)).all()
    assert np.abs(found.var(axis=0).sum() / variance.sum() - 1) < 0.1
    chosen = (found != 0).mean(axis=0)  # each number as often as any other
    assert np.abs(chosen - k / 60).max() < 5 * np.sqrt(k / 60 * (1 - k / 60) / draws)


def test_clients_draw_by_themselves_or_all_alike() -> None:
    x = numbers()
    for kind, alike in [(RandomPart(0.1), False), (RandomPart(0.1, common=True), True)]:
        ours, theirs = (there_and_back(kind, x, Draw(NOW, client, "w")) for client in ("a", "b"))
        assert np.array_equal(ours, theirs) == alike
        assert kind.linear == alike
        again = there_and_back(kind, x, Draw(replace(NOW, exchange=1), "a", "w"))
        assert not np.array_equal(ours, again)


def test_packed_forms_of_common_numbers_add_up() -> None:
    kind, draws = RandomPart(0.2, common=True), [Draw(NOW, client, "w") for client in ("a", "b")]
    x, y = numbers(), numbers(seed=1)
    packed = [kind.pack(tensor, draw) for tensor, draw in zip((x, y), draws, strict=True)]
    total = kind.unpack(weighted_sum([(0.25, packed[0]), (0.75, packed[1])]), x, draws[0])
    apart = 0.25 * there_and_back(kind, x, draws[0]) + 0.75 * there_and_back(kind, y, draws[1])
    assert np.abs(total.numpy() - apart).max() < 1e-14


def largest(v: F64, share: float) -> F64:
    k = max(1, round(share * v.size))
    kept = np.zeros(v.size)
    places = np.argsort(-np.abs(v.ravel()), kind="stable")[:k]
    kept[places] = v.ravel()[places]
    return kept.reshape(v.shape)


def signs(v: F64) -> F64:
    return np.asarray(np.where(v >= 0, 1.0, -1.0) * np.abs(v).mean())


TWINS: dict[str, tuple[Compression, Callable[[F64], F64], Callable[[int], int]]] = {
    "top": (Top(0.3), lambda v: largest(v, 0.3), lambda n: max(1, round(0.3 * n)) * 8 + ceil(n / 8)),
    "sign": (Sign(), signs, lambda n: ceil(n / 8) + 8),
}


@pytest.mark.parametrize("share", [0.5, 0.1, 0.02])
def test_the_largest_numbers_are_sent_as_they_are(share: float) -> None:
    x = numbers(500).view(25, 20)
    assert np.array_equal(there_and_back(Top(share), x, Draw(NOW, "a", "w")), largest(x.numpy(), share))


def test_signs_are_sent_with_the_mean_length() -> None:
    x = numbers(37)
    assert np.abs(there_and_back(Sign(), x, Draw(NOW, "a", "w")) - signs(x.numpy())).max() < 1e-15


@pytest.mark.parametrize("kind", [Top(0.1), Sign()], ids=str)
def test_with_feedback_what_was_sent_and_what_is_kept_add_up_to_all_that_was_meant(kind: Compression) -> None:
    """sum_t sent_t + e_T = sum_t c_t, and what is kept does not grow for ever."""
    memory: Weights = {}
    meant, sent, sizes = np.zeros(60), np.zeros(60), []
    for t in range(1, 201):
        contribution = {"w": numbers(seed=t), "b": torch.ones(1, dtype=torch.float64)}
        _, taken, memory = pack(kind, contribution, memory, replace(NOW, number=t), "a")
        meant, sent = meant + contribution["w"].numpy(), sent + taken["w"].numpy()
        assert taken["b"].item() == 1  # is sent as it is
        [kept] = memory.values()
        assert np.abs(sent + kept.numpy() - meant).max() < 1e-11
        sizes.append(float(kept.norm()))
    assert max(sizes[100:]) < 1.5 * max(sizes[:100])


def test_what_is_kept_is_kept_for_each_exchange_and_apart_from_the_methods_state() -> None:
    first: Weights = pack(Top(0.1), {"w": numbers()}, {}, NOW, "a")[2]
    both = pack(Top(0.1), {"w": numbers()}, first, replace(NOW, exchange=1), "a")[2]
    assert len(both) == 2
    assert all(torch.equal(both[name], kept) for name, kept in first.items())
    head = {"head": torch.ones(2)}
    assert memory_of({**head, **both}).keys() == both.keys()
    assert without_memory({**head, **both}).keys() == head.keys()


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_sent_weighs_what_it_says_and_the_message_is_as_small(
    kind: Compression, dtype: torch.dtype
) -> None:
    contribution = {
        "w": numbers(20_000).to(dtype).view(100, 200),
        "b": numbers(3).to(dtype),
        "n": torch.arange(9),
    }
    sent, taken, _ = pack(kind, contribution, {}, NOW, "a", exact={"b"}.__contains__)
    width = contribution["w"].element_size()
    rest = 3 * width + 9 * 8
    assert nbytes(sent) == kind.size(20_000, width) + rest
    wire = encode(sent, {})
    assert len(wire) < kind.size(20_000, width) + rest + 600  # names and a digest
    assert torch.equal(taken["n"], contribution["n"])
    assert torch.equal(taken["b"], contribution["b"])
    assert taken["w"].dtype == dtype
    assert taken["w"].shape == (100, 200)
    again = unpack(kind, sent, contribution, NOW, "a", exact={"b"}.__contains__)
    assert all(torch.equal(again[name], taken[name]) for name in contribution)


def test_bytes_on_the_wire_are_a_part_of_the_plain_ones() -> None:
    sizes = {str(kind): kind.size(100_000, 4) / 400_000 for kind in KINDS}
    assert sizes == pytest.approx(
        {
            "quantise:8": 0.25,
            "quantise:3": 0.09375,
            "random:0.2": 0.2,
            "top:0.1": 0.1 + 1 / 32,  # a bit for every number
            "top:0.02": 0.04,  # four bytes for every number that is sent
            "sign": 1 / 32,
        },
        abs=1e-4,
    )


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        (Quantise(3), lambda parts: parts["codes"].fill_(255)),
        (Top(0.02), lambda parts: parts["places"].fill_(3)),
        (Top(0.02), lambda parts: parts["places"].add_(10_000)),
        (Top(0.02), lambda parts: parts["places"].sub_(10_000)),
        (Top(0.3), lambda parts: parts["places"].fill_(255)),
        (Top(0.3), lambda parts: parts["places"].zero_()),
    ],
    ids=["no level", "one place", "beyond", "before", "all places", "no place"],
)
def test_parts_that_stand_for_nothing_are_refused(
    kind: Compression, spoil: Callable[[Weights], object]
) -> None:
    x, draw = numbers(1000), Draw(NOW, "a", "w")
    parts = kind.pack(x, draw)
    spoil(parts)
    with pytest.raises(MessageError):
        kind.unpack(parts, x, draw)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_nothing_but_zeros_stays_so(kind: Compression) -> None:
    assert not there_and_back(kind, torch.zeros(100), Draw(NOW, "a", "w")).any()


def train(twin: World, algorithm: pflego.Algorithm, **options: object) -> Run:
    return pflego.train(
        twin.federation,
        twin.model,
        algorithm,
        **{"rounds": 3, "participation": R, "seed": SEED, **options},  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("which", TWINS)
@pytest.mark.parametrize("name", often(methods(), "pflego", "fedavg"))
def test_feedback_goes_with_every_method(name: str, which: str) -> None:
    """Each client's memory in NumPy, one for every array that becomes smaller."""
    kind, apply, size = TWINS[which]
    chosen = cohorts(pflego.Fixed(R), CLIENTS, rounds=3, seed=SEED)
    exchanges = METHODS[name].algorithm.exchanges
    order = iter(
        [(i, exchange) for members in chosen for exchange in range(exchanges) for i in sorted(members)]
    )
    kept: dict[tuple[int, int, str], F64] = {}

    def compressed(work: Params) -> Params:
        client, exchange = next(order)
        found = {}
        for key, array in work.items():
            if key in STATISTICS or size(array.size) >= array.size * 8:
                found[key] = array
                continue
            whole = array + kept.get((client, exchange, key), 0.0)
            found[key] = apply(whole)
            kept[client, exchange, key] = whole - found[key]
        return found

    twin = world()
    run = train(twin, METHODS[name].algorithm, compression=kind)
    simulation, _ = METHODS[name].play(twin, chosen, transform=compressed)
    ours = dict(run.states.items())
    assert any(memory_of(state) for state in ours.values()) == bool(kept)
    for client, state in ours.items():
        theirs = [kept[at] for at in kept if at[0] == twin.federation.position(client)]
        norms = sorted(float(tensor.norm()) for tensor in memory_of(state).values())
        assert norms == pytest.approx(sorted(np.linalg.norm(one) for one in theirs), rel=1e-6, abs=1e-9)
    run.states = {client: without_memory(state) for client, state in ours.items()}
    assert_at(run, simulation, 1e-8)


@pytest.mark.parametrize("name", often(sorted(METHODS.keys() - {"local"}), "pflego", "fedavg"))
def test_fine_levels_are_nearly_what_was_meant_with_every_method(name: str) -> None:
    twin = world()
    plain, fine = (
        train(twin, METHODS[name].algorithm, rounds=1, compression=kind) for kind in (None, "quantise:16")
    )
    gaps = [distance(tensor, plain.shared[key].numpy()) for key, tensor in fine.shared.items()]
    assert max(gaps) < 2e-2  # of a step of Adam, which looks at signs
    if name != "fedproto":  # which sends nothing but statistics
        assert fine.history[0]["bytes_up"] < 0.7 * plain.history[0]["bytes_up"]  # type: ignore[operator]


@pytest.mark.parametrize("name", often(methods(), "pflego", "fedavg"))
def test_a_server_that_divides_does_so_by_what_it_was_told_exactly(name: str) -> None:
    run = train(world(), METHODS[name].algorithm, compression="random:0.2")
    assert [row["refused"] for row in run.history] == [0, 0, 0]
    assert [row["rejected"] for row in run.history] == [0, 0, 0]


@pytest.mark.parametrize("text", ["quantise:4", "random:0.3", "top:0.2", "sign"])
def test_a_compressed_run_is_resumed_to_the_bit(tmp_path: Path, text: str) -> None:
    twin = world(dtype=torch.float32)
    options: dict[str, object] = {"compression": text, "evaluate_every": 1, "checkpoint_every": 1}
    whole = train(twin, pflego.PFLEGO(steps=3), rounds=5, **options)
    for rounds in (2, 5):
        again = train(
            twin, pflego.PFLEGO(steps=3), rounds=rounds, out=tmp_path, resume=rounds == 5, **options
        )
    assert_identical(again, whole)
    assert whole.history[0]["bytes_up"] == R * sum(
        kind.size(t.numel(), 4) if kind.shrinks(t) else t.nbytes
        for kind in [compression_of(text)]
        if kind is not None
        for t in whole.shared.values()
    )


def test_a_folder_is_opened_with_its_compression_and_models_are_those_of_the_run(tmp_path: Path) -> None:
    settings = {"clients": 5, "steps": 3, "rounds": 3, "compression": "top:0.1", "out": str(tmp_path)}
    run = Experiment.build(settings).train()
    opened = pflego.open_run(tmp_path)
    assert opened.plan.compression == Top(0.1)
    assert opened.evaluate() == run.evaluate()
    assert opened.evaluate(adapt=True) == run.evaluate(adapt=True)
    assert opened.cost().bytes_up == run.history[-1]["bytes_up"] / 5  # type: ignore[operator]


def test_states_on_disk_and_those_in_memory_keep_the_same(tmp_path: Path) -> None:
    twin = world(dtype=torch.float32)
    memory = train(twin, pflego.FedAvg(steps=3, client_lr=0.1), compression="sign")
    disk = train(twin, pflego.FedAvg(steps=3, client_lr=0.1), compression="sign", states="disk", out=tmp_path)
    assert_identical(disk, memory)


def test_work_that_is_not_finite_is_left_out_although_no_such_number_is_sent() -> None:
    twin = world()

    class Broken(pflego.FedAvg):
        def client_update(self, now, shared, state, problem):  # type: ignore[no-untyped-def]
            update = super().client_update(now, shared, state, problem)
            if problem.client.id == "c1":
                first = next(iter(update.contribution))
                update.contribution[first].view(-1)[0] = float("nan")
            return update

    run = train(twin, Broken(steps=2, client_lr=0.1), participation=5, compression="random:0.1")
    assert run.rejected["c1"] == 3
    assert all(tensor.isfinite().all() for tensor in run.shared.values())


@pytest.mark.parametrize("rule", ["median", "trimmed:0.2"])
def test_rules_that_look_at_single_numbers_are_refused_where_most_are_not_sent(rule: str) -> None:
    twin = world()
    for text in ("top:0.1", "random:0.1"):
        with pytest.raises(SettingError, match="every number by itself"):
            train(twin, pflego.PFLEGO(steps=2), aggregation=rule, compression=text)
    for text in ("quantise:4", "random:0.1/common", "sign"):
        assert train(twin, pflego.PFLEGO(steps=2), aggregation=rule, compression=text).learned
    assert train(twin, pflego.PFLEGO(steps=2), aggregation="geometric", compression="top:0.1").learned


@pytest.mark.parametrize(
    "text", ["quantise:8", "quantise:2", "random:0.1", "random:0.25/common", "top:0.05", "sign"]
)
def test_a_compression_is_spelled_as_it_is_read(text: str) -> None:
    assert str(compression_of(text)) == text


@pytest.mark.parametrize(
    "given",
    [
        "zip",
        "quantise:1",
        "quantise:17",
        "quantise:x",
        "random:0",
        "random:1",
        "random:0.1/all",
        "top:2",
        "sign:1",
        8,
    ],
)
def test_what_is_none_is_refused(given: object) -> None:
    with pytest.raises(SettingError, match="compression"):
        compression_of(given)
