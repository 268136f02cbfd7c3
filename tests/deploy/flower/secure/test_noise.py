"""Privacy with secure sums: every site's share of the noise, of which no sum that is unmasked has too little."""

from __future__ import annotations

import random
from dataclasses import replace
from math import erfc, exp, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, UserConfig
from hypothesis import given, settings
from hypothesis import strategies as st

import pflego
from pflego.deploy.flower.client import app
from pflego.deploy.flower.secure.content import row_of
from pflego.deploy.flower.secure.fixed_point import Floats, added
from pflego.deploy.flower.secure.noise import draw_share, layout_of, share_deviation
from pflego.deploy.flower.secure.roster import Entry, Roster
from pflego.deploy.flower.secure.settings import SecureSum
from pflego.exchange.privacy import ClientPrivacy, gaussian
from pflego.exchange.round import Round
from pflego.training.loop import NothingLearnedWarning
from tests.deploy.flower.secure.test_rounds import MILL, PowerCut, overheard, watched
from tests.deploy.flower.secure.test_site import SHARED, Sites
from tests.support.grid import Node, NoReplyError
from tests.support.secure_sums import Sum
from tests.support.sites import CONFIG, NAMES, sites, train

CLIP, NOISE, WEIGHT = 0.05, 2.0, 1 / len(NAMES)
NEEDED = 4  # two thirds of five
FULL = (WEIGHT * NOISE * CLIP) ** 2  # the variance that the accountant counts on
ASKED: dict[str, Any] = {
    "algorithm": "fedper",
    "client_lr": 0.1,
    "weighting": "equal",
    "classes": "0-4",
    "secure": True,
    "privacy": f"clip={CLIP},noise={NOISE},delta=1e-3",
}
QUIET = {**ASKED, "privacy": f"clip={CLIP},noise=0,delta=1e-3"}
VALUES = sum(tensor.numel() for tensor in SHARED.values())


def variance_of(noise: Floats, expected: float) -> None:
    """Mean and variance of normal numbers are those expected, to five standard deviations."""
    count = noise.size
    assert abs(noise.mean()) < 5 * sqrt(expected / count)
    assert noise.var() == pytest.approx(expected, rel=5 * sqrt(2 / count))


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_sum_that_is_unmasked_has_all_noise_and_more_where_more_stay(lost: int) -> None:
    clients, size, clip, noise = 6, 20_000, 3.0, 1.5
    rules, privacy = SecureSum(on=True, clip=clip), ClientPrivacy(clip=clip, noise=noise)
    generator = np.random.default_rng(lost)
    contributions = generator.normal(size=(clients, size))
    contributions *= (
        np.linspace(0.5, 2, clients)[:, None] * clip / np.linalg.norm(contributions, axis=1)[:, None]
    )
    one = Sum.of(np.ones((clients, size)), np.zeros((clients, 0)), rules=rules)
    deviation = share_deviation(one.roster, rules, privacy)
    one.layout = layout_of(one.roster, rules, size, 0, deviation=deviation)
    rows = [
        row_of(
            {"weights": torch.from_numpy(contribution)}, clip=clip, weight=1 / clients,
            now=Round(1, 1.0, 1.0), client="c", deviation=deviation,
        )
        for contribution in contributions
    ]  # fmt: skip
    one.share_keys()
    one.mask_all(np.stack(rows), np.zeros((clients, 0)), lost=range(lost))
    one.reveal_all()
    total, _ = one.result()
    stay = contributions[lost:]
    shortened = stay * np.minimum(1, clip / np.linalg.norm(stay, axis=1))[:, None]
    full = (noise * clip / clients) ** 2  # of four, two thirds of six
    variance_of(total - shortened.sum(axis=0) / clients, full * (clients - lost) / 4)


@settings(max_examples=100, deadline=None)
@given(
    parties=st.integers(3, 100),
    values=st.integers(1, 2000),
    clip=st.floats(1e-4, 1e4),
    noise=st.floats(0.01, 100),
    sign=st.sampled_from([-1.0, 1.0]),
)
def test_the_range_holds_all_noise_there_can_be_and_steps_stay_fine(
    parties: int, values: int, clip: float, noise: float, sign: float
) -> None:
    rules = SecureSum(on=True, clip=clip)
    one = roster_of([1 / parties] * parties)
    deviation = share_deviation(one, rules, ClientPrivacy(clip=clip, noise=noise))
    layout = layout_of(one, rules, values, 0, deviation=deviation)
    largest = sqrt(2 * 54 * np.log(2)) * deviation  # Box and Muller with 53 bits
    row = np.full(values, sign * (clip / parties + largest))
    row[1:] = generator_row(values - 1, clip / parties / sqrt(values))
    total, _ = layout.decode(layout.unpack(layout.pack(added([layout.encode(row, np.zeros(0))] * parties))))
    assert np.linalg.norm(total - parties * row) < 1e-4 * clip


def generator_row(count: int, size: float) -> Floats:
    return np.random.default_rng(count).normal(size=count) * size


def roster_of(weights: list[float]) -> Roster:
    one = Sum.of(np.ones((3, 1)), np.zeros((3, 0))).roster
    entries = [Entry(f"c{n}", 0.1, 1.0, weight, one.entries[0].keys) for n, weight in enumerate(weights)]
    return Roster(one.session, tuple(entries))


def test_a_client_that_counts_for_more_is_covered_by_everybodys_noise() -> None:
    """Where a server lets one client count for more, the shares of those who count for less grow with it."""
    rules, privacy = SecureSum(on=True, clip=2.0), ClientPrivacy(clip=2.0, noise=3.0)
    deviation = share_deviation(roster_of([0.1, 0.1, 0.4]), rules, privacy)
    assert sqrt(3) * deviation == pytest.approx(0.4 * 3.0 * 2.0)


def test_an_evaluation_and_a_sum_without_privacy_have_no_noise() -> None:
    rules, one = SecureSum(on=True, clip=2.0), roster_of([0.2] * 5)
    assert share_deviation(one, rules, None) == 0
    evaluation = replace(one, session=replace(one.session, kind="evaluate"))
    assert share_deviation(evaluation, rules, ClientPrivacy(clip=2.0, noise=3.0)) == 0


def test_no_seed_decides_the_noise() -> None:
    drawn: list[Floats] = []
    for _ in range(2):
        torch.manual_seed(5)
        np.random.seed(5)  # the global generator is what must not matter
        random.seed(5)
        drawn.append(draw_share(10_000, 1.0))
    assert abs(np.corrcoef(drawn[0], drawn[1])[0, 1]) < 0.06
    variance_of(np.concatenate(drawn), 1.0)


def shared_of(run: pflego.Run) -> Floats:
    return np.concatenate([run.shared[name].double().numpy().reshape(-1) for name in sorted(run.shared)])


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> pflego.Run:
    """One round without noise."""
    folder = tmp_path_factory.mktemp("exact")
    return train(sites(folder), folder / "server", **QUIET, rounds=1)


def test_without_noise_it_is_the_secure_run_without_privacy(tmp_path: Path) -> None:
    ours = train(sites(tmp_path / "one"), tmp_path / "one" / "server", **QUIET)
    plain = {**QUIET, "privacy": None, "secure-clip": CLIP}
    theirs = train(sites(tmp_path / "two"), tmp_path / "two" / "server", **plain)
    assert theirs.history[0]["clipped"] == len(NAMES)
    assert all(torch.equal(ours.shared[name], weight) for name, weight in theirs.shared.items())
    assert all(row["loss"] is None and "clipped" not in row for row in ours.history)


def lose(nodes: dict[int, Node], stage: str) -> None:
    """Let one site vanish before a stage."""

    def answer(message: Message, context: Context) -> Message:
        if message.metadata.message_type == stage:
            nodes.pop(MILL, None)
            raise NoReplyError
        return app(message, context)

    nodes[MILL].answer = answer


def test_the_weights_of_a_round_have_the_noise_of_those_who_stayed(exact: pflego.Run, tmp_path: Path) -> None:
    """FedPer's server adds the sum to the weights. The server's own noise comes on top of nothing."""
    runs = [train(sites(tmp_path / n), tmp_path / n / "server", **ASKED, rounds=1) for n in ("one", "two")]
    first, second = (shared_of(run) - shared_of(exact) for run in runs)
    for noise in (first, second):
        variance_of(noise, FULL * len(NAMES) / NEEDED)
    assert abs(np.corrcoef(first, second)[0, 1]) < 6 / sqrt(len(first))  # the seed is the same
    secret = (tmp_path / "one" / "server" / "checkpoint" / "secret").read_bytes()
    servers = [
        gaussian(secret, ["privacy noise", "1", "0", n], tuple(SHARED[n].shape)) for n in sorted(SHARED)
    ]
    theirs = np.concatenate([noise.numpy().reshape(-1) for noise in servers])
    assert abs(np.corrcoef(first, theirs)[0, 1]) < 6 / sqrt(len(first))


def test_where_a_site_is_lost_there_is_still_all_noise(tmp_path: Path) -> None:
    results = []
    for name, asked in (("noise", ASKED), ("exact", QUIET)):
        nodes = sites(tmp_path / name)
        lose(nodes, "train.masked")
        run = train(nodes, tmp_path / name / "server", **asked, rounds=1, evaluate_every=0)
        assert run.history[0]["missing"] == 1
        results.append(shared_of(run))
    variance_of(results[0] - results[1], FULL)


@pytest.mark.parametrize("stage", ["train.masked", "train.unmask"])
def test_a_server_that_was_killed_has_the_noise_once(stage: str, exact: pflego.Run, tmp_path: Path) -> None:
    """Before the last stage a new sum takes the place of the old one, with new noise; after it the same sum goes on."""
    nodes = sites(tmp_path)

    def cut(kind: str, message: Message) -> None:
        if kind == stage:
            raise PowerCut

    nodes[996].answer = watched(cut)  # all others have answered
    with pytest.raises(PowerCut):
        train(nodes, tmp_path / "server", **ASKED, rounds=1)
    nodes[996].answer = app
    run = train(nodes, tmp_path / "server", **ASKED, rounds=1)
    assert run.history[0]["missing"] == 0
    variance_of(shared_of(run) - shared_of(exact), FULL * len(NAMES) / NEEDED)


def test_where_too_few_stay_the_server_releases_noise_of_its_own(tmp_path: Path) -> None:
    nodes = sites(tmp_path)

    def broken(message: Message, context: Context) -> Message:
        if message.metadata.message_type == "train.masked":
            raise RuntimeError("out of memory")
        return app(message, context)

    for number in (1000, 999):
        nodes[number].answer = broken
    with pytest.warns(NothingLearnedWarning, match="noise alone"):
        run = train(nodes, tmp_path / "server", **ASKED, rounds=1, evaluate_every=0)
    assert run.history[0]["missing"] == len(NAMES)
    secret = (tmp_path / "server" / "checkpoint" / "secret").read_bytes()
    for name, first in SHARED.items():
        noise = gaussian(secret, ["privacy noise", "1", "0", name], tuple(first.shape))
        torch.testing.assert_close(
            run.shared[name].double(), first.double() + sqrt(FULL) * noise, rtol=1e-5, atol=1e-6
        )


def spent(noise: float, rounds: int, delta: float) -> float:
    """Solve Phi(m/2 - e/m) - exp(e) Phi(-m/2 - e/m) = delta, with m = sqrt(rounds) / noise, for e."""

    def normal(x: float) -> float:
        return erfc(-x / sqrt(2)) / 2

    mean, low, high = sqrt(rounds) / noise, 0.0, 50.0
    for _ in range(80):
        epsilon = (low + high) / 2
        fails = normal(mean / 2 - epsilon / mean) - exp(epsilon) * normal(-mean / 2 - epsilon / mean)
        low, high = (epsilon, high) if fails > delta else (low, epsilon)
    return high


def test_epsilon_is_that_of_the_gaussian_mechanism_and_figures_do_not_leave(tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    heard = overheard(nodes)
    run = train(nodes, tmp_path / "server", **ASKED)
    assert run.history[-1]["epsilon"] == pytest.approx(spent(NOISE, 4, 1e-3), rel=5e-3)
    assert [row["missing"] for row in run.history] == [0] * 4
    assert all(row["loss"] is None and row["participants_accuracy"] is None for row in run.history)
    assert all(row.get("everyone_accuracy") is None for row in run.history)
    sizes = {len(tensors["masked"]) for kind, tensors, _ in heard if kind == "train.masked"}
    width = (
        5  # bytes: the smallest with 2^(8 width) >= parties sqrt(values) 1e7 (1 + 10 noise / sqrt(needed))
    )
    assert 2**32 < len(NAMES) * sqrt(VALUES) * 1e7 * (1 + 10 * NOISE / 2) < 2**40
    assert sizes == {VALUES * width, 3 * 8}  # no figures; and of a test result zeros
    for kind, _, told in heard:
        if kind == "query":
            assert isinstance(told, dict)
            assert (told["samples"], told["tests"]) == (1, 0)


@pytest.fixture
def asked(tmp_path: Path) -> Sites:
    """Sites that have shared their keys, under privacy."""
    own: UserConfig = {**CONFIG, **{name: value for name, value in ASKED.items() if value is not None}}
    found = Sites(sites(tmp_path), settings={**own, "algorithm": "pflego"})
    found.keys()
    found.share()
    return found


def facts(asked: Sites, name: str) -> dict[str, Any]:
    """What a site is told of the federation under privacy: every site says one sample, and all classes."""
    common = {
        **asked.question(name)["federation"],
        "samples": len(NAMES),
        "classes": list(range(5)),
        "most_classes": 5,
    }
    return {"figures": [], "federation": common}


def test_the_same_question_has_the_same_noise(asked: Sites) -> None:
    first = asked.masked("mill", **facts(asked, "mill"))
    for _ in range(3):
        assert torch.equal(asked.masked("mill", **facts(asked, "mill")), first)
    with pytest.raises(pflego.UserError, match="answered before, to another question"):
        asked.masked("mill", {n: t + 0.5 for n, t in SHARED.items()}, **facts(asked, "mill"))


def test_figures_are_asked_for_in_vain(asked: Sites) -> None:
    with pytest.raises(pflego.UserError, match="under privacy none leave"):
        asked.masked("mill", **{**facts(asked, "mill"), "figures": ["loss"]})


def test_work_that_is_not_finite_counts_as_zeros(asked: Sites) -> None:
    """That a client stays away would tell something of its data."""
    beyond = {name: torch.full_like(tensor, 3e38) for name, tensor in SHARED.items()}
    assert len(asked.masked("mill", beyond, **facts(asked, "mill"))) > VALUES
    log = Path(str(asked.nodes["mill"].config["state"])) / "answers.mill.jsonl"
    assert '"kept": false' in log.read_text().splitlines()[-1]
