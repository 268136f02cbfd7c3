"""Clipping and noise against NumPy, sensitivity by removing every client in turn, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from hashlib import shake_256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pflego
from pflego.algorithms.registry import methods
from pflego.engines.local import LocalEngine
from pflego.engines.play import Exchange
from pflego.exchange.privacy import ClientPrivacy, Guard, gaussian, key_of, privacy_of
from pflego.exchange.round import Round
from pflego.learning.problems import Problems
from pflego.runs.run import Run
from pflego.training.loop import NothingLearnedWarning, PrivacyWarning
from pflego.weights import Weights, minus, norm
from tests.support.cases import often
from tests.support.reference import (
    F64,
    Adam,
    Params,
    Site,
    StopAfter,
    World,
    assert_identical,
    cohorts,
    gradients,
    world,
)
from tests.support.rivals import NAMES, assert_at, every_method

SEED, CLIENTS, R, ROUNDS = 3, 5, 4, 3
CLIP, NOISE = 0.02, 0.7  # the first is below the norm of what most clients send
PRIVACY = ClientPrivacy(clip=CLIP, noise=NOISE, delta=1e-3)
METHODS = every_method(tau=4, beta=0.15, rho=0.03, scale=CLIENTS / R, seed=SEED)
REFUSED = {"local", "fednova", "fedproto", "fedpac", "feddbe"}
OURS = {theirs: ours for ours, theirs in NAMES.items()}


def train(twin: World, algorithm: pflego.Algorithm, **options: Any) -> Run:
    options = {
        "rounds": ROUNDS,
        "participation": R,
        "seed": SEED,
        "weighting": "equal",
        "privacy": PRIVACY,
        **options,
    }
    return pflego.train(twin.federation, twin.model, algorithm, **options)


def normal(number: int, exchange: int, name: str, shape: tuple[int, ...]) -> F64:
    """The noise of a tensor: two uniform numbers of SHAKE-256 make two normal ones."""
    parts = [f"seed {SEED}", "privacy noise", str(number), str(exchange), name]
    key = b"".join(len(part).to_bytes(8, "big") + part.encode() for part in parts)
    count = int(np.prod(shape))
    pairs = -(-count // 2)
    raw = shake_256(key).digest(16 * pairs)
    uniform = [
        ((int.from_bytes(raw[8 * k : 8 * k + 8], "little") >> 11) + 0.5) / 2**53 for k in range(2 * pairs)
    ]
    first, second = np.array(uniform[:pairs]), np.array(uniform[pairs:])
    plane = np.sqrt(-2 * np.log(first)) * np.exp(2j * np.pi * second)
    return np.concatenate([plane.real, plane.imag])[:count].reshape(shape)


class Mechanism:
    """Clip, sum, add noise; a call per exchange."""

    def __init__(self, exchanges: int = 1) -> None:
        self.exchanges, self.calls, self.clipped = exchanges, 0, 0

    def __call__(self, sent: Sequence[Params], weights: Sequence[float]) -> Params:
        number, exchange = self.calls // self.exchanges + 1, self.calls % self.exchanges
        self.calls += 1
        sizes = [np.sqrt(sum((array**2).sum() for array in one.values())) for one in sent]
        factors = [CLIP / size * (1 - 1e-6) if size > CLIP else 1.0 for size in sizes]
        self.clipped += sum(factor < 1 for factor in factors)
        noise_of = {
            name: normal(number, exchange, self.called(name, exchange), array.shape)
            for name, array in sent[0].items()
        }
        return {
            name: sum(f * one[name] for f, one in zip(factors, sent, strict=True)) / R
            + NOISE * CLIP / R * noise_of[name]
            for name in sent[0]
        }

    def called(self, name: str, exchange: int) -> str:
        first_of_two = self.exchanges > 1 and exchange == 0
        return f"gradient/{OURS[name]}" if first_of_two else OURS[name]


@pytest.mark.parametrize("name", often(sorted(METHODS.keys() - REFUSED), "pflego", "fedavg"))
def test_every_method_that_only_sums_takes_clipped_and_noisy_sums(name: str) -> None:
    twin, rival = world(), METHODS[name]
    run = train(twin, rival.algorithm)
    chosen = cohorts(pflego.Fixed(R), CLIENTS, rounds=ROUNDS, seed=SEED)
    counts = [1.0] * CLIENTS
    mechanism = Mechanism(rival.exchanges)
    simulation, _ = rival.play(twin, chosen, combine=mechanism, counts=counts)
    assert mechanism.clipped
    assert_at(run, simulation, 1e-9)


def test_methods_are_sorted_into_those_that_sum_and_those_that_are_refused() -> None:
    for name in methods():
        if name in REFUSED:
            with pytest.raises(pflego.SettingError, match=f"{name}"):
                train(world(), METHODS[name].algorithm)
    assert METHODS.keys() == methods().keys()


@pytest.mark.parametrize("name", often(sorted(METHODS.keys() - REFUSED), "pflego", "fedavg"))
def test_no_noise_and_a_huge_clip_are_the_plain_run_to_the_bit(name: str) -> None:
    """Weights are 1/r where replies are not counted; missing="inverse" has the same in a plain run."""
    twin, loose = world(dtype=torch.float32), ClientPrivacy(clip=1e9, noise=0)
    run = train(twin, METHODS[name].algorithm, privacy=loose, participation=pflego.Binomial(0.8))
    plain = train(
        twin, METHODS[name].algorithm, privacy=None, missing="inverse", participation=pflego.Binomial(0.8)
    )
    assert run.history[-1].pop("epsilon") == float("inf")
    assert_identical(run, plain)


def aggregate(
    twin: World, cohort: Sequence[int], privacy: ClientPrivacy, algorithm: pflego.Algorithm
) -> Weights:
    """Give S of a round from theta_0, by how far plain gradient descent at rate 1 moves the shared weights."""
    problems = Problems(twin.federation, twin.model, labels=algorithm.labels)
    shared = algorithm.init_shared(twin.model, problems.outputs, SEED)
    states = {client: algorithm.init_state(problems[i], SEED) for i, client in enumerate(twin.federation.ids)}
    exchange = replace(
        Exchange.of(algorithm, twin.federation.sizes, expected=1.0, weighting="equal", seed=SEED),
        privacy=privacy,
    )
    engine = LocalEngine(problems, algorithm, states, together=exchange.sums)
    played = exchange.play(engine, 1, shared, {}, cohort, ids=twin.federation.ids, keep=lambda changed: None)
    return minus(played.shared, shared)


@pytest.mark.parametrize("clip", often([1e-3, 0.05, 0.3], 0.05))
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedper", "ditto"])
def test_a_client_more_or_less_moves_the_sum_by_at_most_the_clip(
    name: str, dtype: torch.dtype, clip: float
) -> None:
    """With r = 1 the weighted sum is the sum; noise is the same with and without a client, and falls out."""
    twin, algorithm = world(dtype=dtype), METHODS[name].algorithm
    for noise in (0.0, 1.0):
        privacy = ClientPrivacy(clip=clip, noise=noise)
        everyone = aggregate(twin, range(CLIENTS), privacy, algorithm)
        moves = []
        for left_out in range(CLIENTS):
            others = [i for i in range(CLIENTS) if i != left_out]
            moves.append(norm(minus(everyone, aggregate(twin, others, privacy, algorithm))))
        rounding = 3e-6 if dtype == torch.float32 else 1e-12  # of weights to which the sum was added
        assert max(moves) <= clip + rounding
        if clip < 0.01:  # all are longer
            assert min(moves) > 0.9 * clip


@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=6),
    st.floats(1e-6, 1e6),
)
@settings(deadline=None)
def test_a_bounded_contribution_is_never_longer_than_the_clip(values: list[float], clip: float) -> None:
    guard = Guard(ClientPrivacy(clip=clip), {}, 1.0, b"", Round(1))
    sent = guard.bounded({"w": torch.tensor(values), "v": torch.tensor(values[:1])})
    assert norm(sent) <= clip
    again = guard.bounded(sent)
    assert all(torch.equal(again[name], sent[name]) for name in sent)


def test_an_engine_that_sums_before_anything_was_clipped_is_refused() -> None:
    twin = world(clients=60)
    with pytest.raises(pflego.SettingError, match="summed some already"):
        train(twin, pflego.PFLEGO(steps=2), participation=60, rounds=1, engine=LocalEngine)
    train(twin, pflego.PFLEGO(steps=2), participation=60, rounds=1)  # ours knows


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_counts_as_zeros(bad: float) -> None:
    guard = Guard(PRIVACY, {}, 1.0, b"", Round(1))
    assert guard.bounded({"w": torch.tensor([1.0, bad])})["w"].tolist() == [0.0, 0.0]


def test_a_round_without_replies_has_noise_all_the_same() -> None:
    """FedAvg's server adds what is released: noise of deviation z C / (p I), and nothing else."""
    twin, rare = world(), pflego.Binomial(1e-9)
    algorithm = METHODS["fedavg"].algorithm
    with pytest.warns(NothingLearnedWarning, match="noise alone"):
        run = train(twin, algorithm, participation=rare, rounds=2)
    expected = CLIENTS * 1e-9
    first = algorithm.init_shared(twin.model, twin.federation.most_classes or 1, SEED)
    for name, weight in run.shared.items():
        moved = sum(normal(t, 0, name, tuple(weight.shape)) for t in (1, 2)) * NOISE * CLIP / expected
        np.testing.assert_allclose((weight - first[name]).numpy(), moved, rtol=1e-9)


def test_lost_replies_count_as_zeros_under_a_fixed_denominator() -> None:
    twin = world()
    with pytest.warns(NothingLearnedWarning):
        run = train(twin, METHODS["pflego"].algorithm, deadline=1e-9, rounds=1)
    for name, first in twin.model.weights().items():
        gradient = normal(1, 0, name, tuple(first.shape)) * NOISE * CLIP / R
        expected = Adam(0.03).step(first.numpy(), gradient)
        np.testing.assert_allclose(run.shared[name].numpy(), expected, rtol=1e-9)


def test_noise_is_normal_and_never_twice_the_same() -> None:
    draws = [
        gaussian(key, ["privacy noise", str(number), str(exchange), name], (50_001,)).numpy()
        for key in (key_of(0), key_of(1), b"secret")
        for number in (1, 2)
        for exchange in (0, 1)
        for name in ("v", "w")
    ]
    whole = np.concatenate(draws)
    n = len(whole)
    assert abs(whole.mean()) < 4 / np.sqrt(n)
    assert abs(whole.var() - 1) < 4 * np.sqrt(2 / n)
    assert abs((whole**4).mean() - 3) < 4 * np.sqrt(96 / n)
    assert 4.3 < np.abs(whole).max() < 7
    assert len(np.unique(whole)) > n - 10  # none is used twice
    for i, one in enumerate(draws):
        for other in draws[:i]:
            assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(len(one))
    halves = np.corrcoef(draws[0][:25_000], draws[0][25_000:50_000])[0, 1]  # cosine and sine of one pair
    assert abs(halves) < 5 / np.sqrt(25_000)
    ranks = np.searchsorted(np.sort(whole), [-1.959964, 0, 1.959964]) / n
    np.testing.assert_allclose(ranks, [0.025, 0.5, 0.975], atol=0.002)


def test_words_of_a_key_cannot_run_into_each_other() -> None:
    assert not torch.equal(gaussian(b"1", ["2", "3"], (4,)), gaussian(b"1", ["23"], (4,)))
    assert not torch.equal(gaussian(b"12", ["3"], (4,)), gaussian(b"1", ["23"], (4,)))


@pytest.mark.parametrize("quantile", often([0.2, 0.5, 0.9]))
def test_a_clip_that_follows_comes_to_the_quantile_of_norms(quantile: float) -> None:
    """Fifty clients whose norms are 0.1, 0.2, ..., 5: the clip must come near the quantile from either side."""
    privacy = ClientPrivacy(clip=20.0, noise=0.5, quantile=quantile)
    for first in (20.0, 0.05):
        state = {"clip": torch.tensor(first, dtype=torch.float64)}
        clips = []
        for number in range(1, 201):
            guard = Guard(privacy, state, 1 / 50, key_of(0), Round(number))
            sent = [guard.bounded({"w": torch.tensor([0.1 * k])}) for k in range(1, 51)]
            total = {name: sum(one[name] for one in sent) / 50 for name in sent[0]}
            released, state = guard.release(total, total)  # type: ignore[arg-type]
            assert set(released) == {"w"}
            clips.append(guard.clip)
        assert np.mean(clips[100:]) == pytest.approx(5 * quantile, rel=0.15)


def test_the_two_sums_of_a_following_clip_are_one_release() -> None:
    """A client moves them by C / (z' C) and (1/2) / s, in units of their noise: together by 1 / z."""
    for noise, expected in [(0.5, 100.0), (1.0, 20.0), (4.0, 10.0), (1.0, 1.0)]:
        multiplier, count = ClientPrivacy(noise=noise, quantile=0.5).split(expected)
        assert multiplier**-2 + (0.5 / count) ** 2 == pytest.approx(noise**-2)
        assert multiplier <= 1.16 * noise
    assert ClientPrivacy(noise=0.5).split(100.0) == (0.5, 0.0)


def test_a_following_clip_is_kept_with_the_server(tmp_path: Path) -> None:
    twin = world(dtype=torch.float32)
    options: dict[str, Any] = {"privacy": replace(PRIVACY, quantile=0.5), "rounds": 8}
    algorithm = METHODS["pflego"].algorithm
    whole = train(twin, algorithm, **options)
    with pytest.raises(KeyboardInterrupt):
        train(twin, algorithm, **options, out=tmp_path, callbacks=[StopAfter(5)])
    resumed = train(twin, algorithm, **options, out=tmp_path, resume=True)
    assert_identical(resumed, whole)
    fixed = train(twin, algorithm, rounds=8)
    assert not torch.equal(fixed.shared["0.weight"], whole.shared["0.weight"])


def killed_after_four_rounds(folder: Path) -> int:
    """Train in a process that is killed at once after a round, without a chance to tidy up."""
    script = """
import os, signal, sys
import pflego
from tests.exchange.test_privacy import private

class Kill(pflego.Callback):
    def on_round(self, run, row):
        if row["round"] == 4:
            os.kill(os.getpid(), signal.SIGKILL)

private(sys.argv[1], callbacks=[Kill()])
"""
    command = [sys.executable, "-c", script, str(folder)]
    root = Path(__file__).parents[2]
    return subprocess.run(command, cwd=root, check=False, capture_output=True).returncode


def private(folder: Path | str, **options: Any) -> Run:
    """Train for six rounds under noise."""
    method, chance = pflego.PFLEGO(steps=3), pflego.Binomial(0.5)
    return train(world(dtype=torch.float32), method, rounds=6, participation=chance, out=folder, **options)


def test_a_private_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    assert killed_after_four_rounds(tmp_path / "killed") == -9
    resumed = private(tmp_path / "killed", resume=True)
    assert_identical(resumed, private(tmp_path / "whole"))
    assert resumed.plan.privacy == PRIVACY


def test_clipping_single_samples_is_no_privacy_of_samples() -> None:
    """The trap that is not offered: a head was fitted to the same samples, so one moves the gradients of the others."""
    twin = world()
    site, limit = twin.sites[-1], 1e-2

    def clipped_sum(rows: Sequence[int], head: F64 | None = None) -> tuple[F64, F64]:
        """Sum theta's gradients of single samples, each clipped, under a head that was fitted to all of them."""
        own = Site(site.x[list(rows)], site.t[list(rows)], softmax=True)
        if head is None:
            head = np.zeros_like(twin.heads[-1])
            for _ in range(50):
                head = head - 0.5 * gradients(twin.net, head, own)[2]
        total = np.zeros(twin.net.V.size + twin.net.v.size)
        for row in rows:
            one = Site(site.x[[row]], site.t[[row]], softmax=True)
            V, v, _ = gradients(twin.net, head, one)
            gradient = np.concatenate([V.ravel(), v])
            total += gradient * min(1.0, limit / np.linalg.norm(gradient))
        return total, head

    everybody = range(site.n)
    whole, fitted = clipped_sum(everybody)
    others = [[row for row in everybody if row != left] for left in everybody]
    refitted = max(np.linalg.norm(whole - clipped_sum(rows)[0]) for rows in others)
    same_head = max(np.linalg.norm(whole - clipped_sum(rows, fitted)[0]) for rows in others)
    assert same_head <= limit * (1 + 1e-9)
    assert refitted > 1.2 * limit


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"weighting": "samples"}, "weighting='equal'"),
        ({"missing": "renormalise"}, "fixed denominator"),
        ({"missing": "normalise"}, "fixed denominator"),
        ({"aggregation": pflego.Median()}, "single contributions"),
        ({"objective": pflego.CVaR(0.2)}, "losses"),
        ({"objective": pflego.Agnostic(0.2)}, "losses"),
        ({"population": pflego.Population(join={"c4": 2})}, "population"),
        ({"participation": pflego.Estimated(pflego.Binomial(0.5))}, "no accountant"),
        ({"privacy": 3}, "ClientPrivacy"),
        ({"privacy": "clip=1,nois=2"}, "cannot read privacy"),
        ({"privacy": "clip=0"}, "clip must be"),
        ({"privacy": ClientPrivacy(noise=0.5, max_epsilon=0.1)}, "does not even allow one round"),
    ],
)
def test_what_would_break_the_promise_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(pflego.SettingError, match=words):
        train(world(), pflego.PFLEGO(steps=2), **options)


def test_rates_that_come_from_one_client_are_refused() -> None:
    for algorithm in (
        pflego.PFLEGO(server_lr="auto", server_optimizer="sgd"),
        pflego.FedSGD(client_lr="auto"),
    ):
        with pytest.raises(pflego.SettingError, match="largest"):
            train(world(), algorithm)
    train(world(), pflego.PFLEGO(steps=2), objective=pflego.QFair(1.0), rounds=1)  # losses stay at home


def test_a_delta_that_would_give_clients_away_is_warned_of() -> None:
    with pytest.warns(PrivacyWarning, match="one in 5 clients"):
        train(world(), pflego.PFLEGO(steps=2), privacy=ClientPrivacy(delta=0.2), rounds=1)


def test_training_stops_before_the_largest_epsilon_and_cannot_be_resumed_beyond(tmp_path: Path) -> None:
    twin, algorithm = world(), pflego.PFLEGO(steps=2)
    chance, most = pflego.Binomial(0.2), 3.0
    privacy = ClientPrivacy(clip=CLIP, noise=1.0, delta=1e-3, max_epsilon=most)
    options: dict[str, Any] = {"participation": chance, "privacy": privacy, "out": tmp_path, "rounds": 40}
    with pytest.warns(PrivacyWarning, match="training stops after"):
        run = train(twin, algorithm, **options)
    done = len(run.history)
    spent = run.history[-1]["epsilon"]
    assert 0 < done < 40
    assert spent is not None
    assert spent <= most
    longer = train(
        twin, algorithm, participation=chance, privacy=replace(privacy, max_epsilon=None), rounds=done + 1
    )
    assert (longer.history[-1]["epsilon"] or 0) > most
    with pytest.warns(PrivacyWarning, match="training stops after"):
        again = train(twin, algorithm, **{**options, "rounds": 80}, resume=True)
    assert len(again.history) == done
    with pytest.raises(pflego.UserError, match="other settings"):
        train(twin, algorithm, **{**options, "privacy": replace(privacy, max_epsilon=9.0)}, resume=True)


def test_history_says_what_was_spent_where_everyone_was_evaluated() -> None:
    run = train(world(), pflego.PFLEGO(steps=2), rounds=5, evaluate_every=2)
    spent = [row.get("epsilon") for row in run.history]
    assert [epsilon is not None for epsilon in spent] == [False, True, False, True, True]
    known = [epsilon for epsilon in spent if epsilon is not None]
    assert known == sorted(known)


def test_settings_spell_privacy_and_read_it_again() -> None:
    for privacy in (
        PRIVACY,
        ClientPrivacy(),
        ClientPrivacy(max_epsilon=8.0, quantile=0.25, clip_lr=0.1),
    ):
        assert privacy_of(str(privacy)) == privacy
    assert privacy_of("none") is None
    assert privacy_of(None) is None
