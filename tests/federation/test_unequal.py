"""Clients that do not take part equally often: over all cohorts and arrivals, the step is everybody's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pflego
from pflego.algorithms.registry import methods
from pflego.engines.local import LocalEngine
from pflego.federation.draws import Participation, Positions, cohort, expected, scales, spelled
from pflego.federation.network import Network
from pflego.federation.participation import participation_of
from pflego.federation.roster import ClientId
from pflego.federation.unequal import best_chances, variance
from pflego.learning.problems import Problems
from pflego.runs.plan import Plan
from pflego.weights import Weights
from tests.support.reference import (
    F64,
    StopAfter,
    World,
    algorithm_1,
    assert_follows,
    assert_identical,
    cohorts,
    gradients,
    world,
)
from tests.support.rivals import steps

CHANCES: dict[ClientId, float] = {"c0": 0.9, "c1": 0.15, "c2": 0.4, "c3": 1.0}
IDS = list(CHANCES)
EXACT = pflego.PFLEGO(steps=1, server_lr=1.0, server_optimizer="sgd", head_step="exact")


def chance_of(client: ClientId) -> float:
    return CHANCES[client]


@pytest.fixture
def twin() -> World:
    made = world(clients=4)
    made.random_heads()
    return made


def every_cohort(chances: Sequence[float], dropout: float) -> Iterator[tuple[float, list[int], set[int]]]:
    """Give the probability of every cohort with every way that its replies may arrive."""
    for there in product([False, True], repeat=len(chances)):
        chosen = [i for i, comes in enumerate(there) if comes]
        drawn = prod(p if comes else 1 - p for p, comes in zip(chances, there, strict=True))
        for count in range(len(chosen) + 1):
            for arrived in combinations(chosen, count):
                lost = len(chosen) - count
                yield drawn * (1 - dropout) ** count * dropout**lost, chosen, set(arrived)


def mean_step(
    twin: World, algorithm: pflego.Algorithm, plan: Plan, chances: Sequence[float]
) -> dict[str, F64]:
    """Expectation of how far one round moves the shared weights and the heads, by enumeration."""
    states: dict[ClientId, Weights] = {
        f"c{i}": {"head": torch.from_numpy(W)} for i, W in enumerate(twin.heads)
    }
    problems = Problems(twin.federation, twin.model)
    engine = LocalEngine(problems, algorithm, states, together=False)
    exchange, shared = plan.exchange(algorithm, twin.federation), twin.model.weights()
    total = 0.0
    mean: dict[str, F64] = {}
    for probability, chosen, there in every_cohort(chances, plan.network.dropout):
        total += probability
        if not probability:
            continue
        played = exchange.play(
            engine,
            1,
            shared,
            {},
            chosen,
            ids=twin.federation.ids,
            keep=lambda changed: None,
            arrives=lambda outcome, there=there: outcome.position in there,  # type: ignore[misc]
        )
        moved = {name: shared[name] - played.shared[name] for name in shared}
        moved |= {str(id): states[id]["head"] - new["head"] for id, new in played.states.items()}
        for name, tensor in moved.items():
            mean[name] = mean.get(name, np.zeros(())) + probability * tensor.numpy()
    assert total == pytest.approx(1)
    return mean


def full_step(twin: World) -> dict[str, F64]:
    """The gradient of sum_i a_i l_i in everything."""
    parts = [gradients(twin.net, W, site) for W, site in zip(twin.heads, twin.sites, strict=True)]
    shared = {
        name: np.asarray(sum(a * part[k] for a, part in zip(twin.alphas, parts, strict=True)))
        for k, name in enumerate(["0.weight", "0.bias"])
    }
    return shared | {f"c{i}": a * parts[i][2] for i, a in enumerate(twin.alphas)}


def apart(ours: F64, theirs: F64) -> float:
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize(
    "process",
    [pflego.Independent(CHANCES), pflego.Independent(chance_of), pflego.Daily(0.1, 0.8, rounds=5)],
    ids=["mapping", "function", "daily"],
)
def test_over_all_cohorts_and_arrivals_the_step_is_the_full_gradients(
    twin: World, process: Participation, dropout: float
) -> None:
    plan = Plan(rounds=1, participation=process, missing="inverse", network=Network(dropout), seed=3)
    chances = 1 / scales(process, IDS, number=1, seed=3)
    assert chances.max() > 2 * chances.min()
    mean, full = mean_step(twin, EXACT, plan, chances.tolist()), full_step(twin)
    assert mean.keys() == full.keys()
    for name, step in full.items():
        assert apart(mean[name], step) < 1e-12, name


def test_zero_shortens_the_step_by_what_is_lost_and_heads_are_not_concerned(twin: World) -> None:
    process = pflego.Independent(CHANCES)
    plan = Plan(rounds=1, participation=process, missing="zero", network=Network(0.3))
    mean, full = mean_step(twin, EXACT, plan, list(CHANCES.values())), full_step(twin)
    for name, step in full.items():
        assert apart(mean[name], step if name in CHANCES else 0.7 * step) < 1e-12, name


def test_a_rate_from_the_theory_is_the_same_for_theta_and_every_head_and_below_its_bound(twin: World) -> None:
    """Over all cohorts a step of min_i pi_i q / L along the full gradient; no single part is longer than 1/L."""
    algorithm = replace(EXACT, server_lr="auto")
    process, dropout, constant = pflego.Independent(CHANCES), 0.3, 7.0
    plan = Plan(rounds=1, participation=process, missing="inverse", network=Network(dropout))
    exchange = plan.exchange(algorithm, twin.federation)
    shared = {"smoothness": torch.tensor(constant, dtype=torch.float64)}
    rate = 0.15 * 0.7 / constant
    assert algorithm.rates.server(exchange.round(1), shared) == pytest.approx(rate, rel=1e-12)
    turns = exchange.turns(exchange.round(1), range(4))
    for turn, (alpha, p) in zip(turns, zip(twin.alphas, CHANCES.values(), strict=True), strict=True):
        assert turn.weight == pytest.approx(alpha / p / 0.7, rel=1e-12)
        head = algorithm.rates.last(turn.now, shared)
        assert head == pytest.approx(alpha * rate / p, rel=1e-12)
        assert rate * turn.weight <= alpha / constant * (1 + 1e-12)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_with_inverse_weights_a_method_that_averages_is_unbiased_too(twin: World, dropout: float) -> None:
    """Horvitz and Thompson: the expected move is sum_i a_i (w_i - w) over everybody, after three steps of each."""
    algorithm = pflego.FedPer(steps=3, client_lr=0.2)
    process = pflego.Independent(CHANCES)
    moves = []
    for W, site in zip(twin.heads, twin.sites, strict=True):
        start = {"V": twin.net.V, "v": twin.net.v, "W": W}
        after = steps(start, site, 3, rate=0.2)
        moves.append({name: start[name] - after[name] for name in "Vv"})
    options = {"rounds": 1, "participation": process, "network": Network(dropout)}
    found = mean_step(twin, algorithm, Plan(**options, missing="inverse"), list(CHANCES.values()))  # type: ignore[arg-type]
    shares = mean_step(twin, algorithm, Plan(**options), list(CHANCES.values()))  # type: ignore[arg-type]
    for ours, theirs in (("0.weight", "V"), ("0.bias", "v")):
        everybodys = np.asarray(sum(a * move[theirs] for a, move in zip(twin.alphas, moves, strict=True)))
        assert apart(found[ours], everybodys) < 1e-12
        assert apart(shares[ours], everybodys) > 0.01  # weights that sum to one over a cohort are biased


def test_where_weights_sum_to_one_a_rare_client_counts_for_more(twin: World) -> None:
    plan = Plan(rounds=1, participation=pflego.Independent(CHANCES))
    exchange = plan.exchange(pflego.FedAvg(), twin.federation)
    weights = [turn.weight for turn in exchange.turns(exchange.round(1), [1, 3])]
    wanted = np.array([twin.alphas[1] / 0.15, twin.alphas[3] / 1.0])
    assert weights == pytest.approx((wanted / wanted.sum()).tolist(), rel=1e-12)


@pytest.mark.parametrize("missing", ["zero", "inverse"])
def test_rounds_follow_algorithm_1_with_every_clients_own_scale(missing: str) -> None:
    twin = world()
    chances: dict[ClientId, float] = {f"c{i}": p for i, p in enumerate([0.9, 0.15, 0.4, 1.0, 0.6])}
    process = pflego.Independent(chances)
    run = pflego.train(
        twin.federation,
        twin.model,
        pflego.PFLEGO(steps=3, client_lr=0.2, server_lr=0.05),
        rounds=12,
        participation=process,
        dropout=0.25,
        missing=missing,  # type: ignore[arg-type]
        seed=4,
    )
    drawn = cohorts(process, 5, rounds=12, seed=4, ids=twin.federation.ids)
    assert len({len(chosen) for chosen in drawn}) > 2
    trace = algorithm_1(
        twin,
        drawn,
        scales=[1 / p for p in chances.values()],
        arrival=0.75 if missing == "inverse" else 1.0,
        tau=3,
        beta=0.2,
        rho=0.05,
        adam=True,
        arrives=lambda i, t: Network(0.25).delivers(samples=1, passes=1, client=f"c{i}", number=t, seed=4),
    )
    assert 0 < sum(trace.arrived) < sum(map(len, drawn))
    assert_follows(run, twin)


@pytest.mark.parametrize(
    "process",
    [
        pflego.Independent({f"c{i}": 0.2 + 0.15 * i for i in range(5)}),
        pflego.Daily(0.2, 0.9, rounds=4),
        pflego.Estimated(pflego.Binomial(0.5), cutoff=4),
    ],
    ids=["independent", "daily", "estimated"],
)
def test_such_a_run_resumes_exactly_and_opens_again(tmp_path: Path, process: Participation) -> None:
    twin = world(dtype=torch.float32)

    def train(out: Path, **options: object) -> pflego.Run:
        return pflego.train(
            twin.federation,
            twin.model,
            pflego.PFLEGO(steps=3),
            rounds=8,
            participation=process,
            out=out,
            **options,  # type: ignore[arg-type]
        )

    whole = train(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "cut", callbacks=[StopAfter(5)])
    assert_identical(train(tmp_path / "cut", resume=True), whole)
    opened = pflego.open_run(
        tmp_path / "cut", federation=twin.federation, model=twin.model, algorithm=pflego.PFLEGO(steps=3)
    )
    assert opened.plan.participation == process
    assert [opened.participants(t) for t in range(1, 9)] == [whole.participants(t) for t in range(1, 9)]
    assert opened.report(tmp_path / "report.html").exists()
    assert opened.cost().forward_passes == 1


@given(
    st.dictionaries(st.text(max_size=5), st.floats(0.01, 1), min_size=1, max_size=6), st.integers(1, 10**6)
)
def test_a_cohort_is_some_clients_and_a_process_is_read_as_it_is_spelled(
    chances: dict[str, float], number: int
) -> None:
    process = pflego.Independent(chances)
    assert participation_of(spelled(process)) == process
    assert participation_of(chances) == process
    drawn = cohort(process, list(chances), seed=1, number=number)
    assert set(drawn) <= set(range(len(chances)))
    assert expected(process, list(chances)) == pytest.approx(sum(chances.values()))


def test_clients_take_part_as_often_as_they_should() -> None:
    counts = np.zeros(4)
    for number in range(4000):
        counts[cohort(pflego.Independent(CHANCES), IDS, seed=5, number=number)] += 1
    for count, p in zip(counts / 4000, CHANCES.values(), strict=True):
        assert abs(count - p) <= 5 * np.sqrt(p * (1 - p) / 4000)


@pytest.mark.parametrize("process", [pflego.Daily(0.05, 0.5), pflego.Daily(0.1, 0.2, 7)], ids=str)
def test_a_day_goes_round_and_time_zones_differ(process: pflego.Daily) -> None:
    assert participation_of(spelled(process)) == process
    ids = range(200)
    day = np.array([process.chances(ids, number=t, seed=0) for t in range(process.rounds)])
    assert np.allclose(day[0], process.chances(ids, number=process.rounds, seed=0))
    assert day.min() >= process.low - 1e-12
    assert day.max() <= process.high + 1e-12
    assert np.allclose(day.mean(axis=0), (process.low + process.high) / 2)  # nobody is favoured over a day
    assert len({int(t) for t in day.argmax(axis=0)}) > process.rounds // 2


def intervals(visits: Sequence[bool], cutoff: int) -> float:
    """FedAU's mean interval, written down once more for one client and all its past rounds."""
    lengths, since = [], 0
    for came in visits:
        since += 1
        if came or since == cutoff:
            lengths.append(since)
            since = 0
    return float(np.mean(lengths)) if lengths else 1.0


@pytest.mark.parametrize("cutoff", [3, 50])
def test_unknown_chances_are_the_mean_intervals_between_visits(cutoff: int) -> None:
    process = pflego.Estimated(pflego.Independent(CHANCES), cutoff)
    assert participation_of(spelled(process)) == process
    drawn = [set(cohort(process, IDS, seed=2, number=t)) for t in range(1, 40)]
    assert drawn == [set(cohort(process.process, IDS, seed=2, number=t)) for t in range(1, 40)]
    for number in (1, 2, 7, 39, 20):  # and once back in time
        wanted = [intervals([i in chosen for chosen in drawn[: number - 1]], cutoff) for i in range(4)]
        assert scales(process, IDS, number=number, seed=2) == pytest.approx(wanted, rel=1e-12)


def test_an_estimated_chance_is_biased_as_its_docstring_says() -> None:
    """Enumerated over all visits of ten rounds: below 1/p early on; with a short cutoff, for good."""
    p = 0.2

    def mean(rounds: int, cutoff: int) -> float:
        return sum(
            p ** sum(visits) * (1 - p) ** (rounds - sum(visits)) * intervals(visits, cutoff)
            for visits in product([False, True], repeat=rounds)
        )

    assert mean(1, 50) == 1.0
    early, later = mean(4, 50), mean(12, 50)
    assert early < later < 1 / p
    assert mean(12, 2) < 2 < 1 / p


@given(st.lists(st.floats(0, 10), min_size=2, max_size=8), st.floats(0.05, 0.9), st.integers(0, 2**32 - 1))
def test_no_other_chances_vary_less(norms: list[float], share: float, seed: int) -> None:
    sizes: dict[ClientId, float] = {f"c{i}": size for i, size in enumerate(norms)}
    r, least = share * len(norms), 0.02
    best = best_chances(sizes, expected=r, least=least)
    assert sum(best.values()) == pytest.approx(r, rel=1e-6)
    assert all(least - 1e-9 <= p <= 1 for p in best.values())
    rng = np.random.default_rng(seed)
    smallest = variance(sizes, best)
    for _ in range(20):  # other probabilities with the same sum: between the best and random ones
        other = np.clip(rng.dirichlet(np.ones(len(norms))) * r, least, 1)
        if abs(other.sum() - r) < 1e-9:
            assert (
                smallest <= variance(sizes, dict(zip(best, other.tolist(), strict=True))) * (1 + 1e-6) + 1e-9
            )
    assert smallest <= variance(sizes, dict.fromkeys(best, share)) * (1 + 1e-6) + 1e-9


def test_the_variance_is_the_enumerated_one(twin: World) -> None:
    vectors = np.random.default_rng(0).normal(size=(4, 3)) * np.array([[1.0], [5.0], [0.2], [2.0]])
    norms: dict[ClientId, float] = dict(zip(IDS, np.linalg.norm(vectors, axis=1).tolist(), strict=True))
    whole = vectors.sum(axis=0)
    found = 0.0
    for probability, chosen, arrived in every_cohort(list(CHANCES.values()), 0.0):
        if len(arrived) == len(chosen):
            step = sum((vectors[i] / list(CHANCES.values())[i] for i in chosen), np.zeros(3))
            found += probability * float(((step - whole) ** 2).sum())
    assert variance(norms, {str(k): p for k, p in CHANCES.items()}) == pytest.approx(found, rel=1e-12)


def test_chances_are_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps({"c0": 0.5, "7": 1}))
    (tmp_path / "p.csv").write_text("client,probability\nc0,0.5\n7,1\n")
    for name in ("p.json", "p.csv"):
        process = participation_of(f"independent:{tmp_path / name}")
        assert process == pflego.Independent({"c0": 0.5, "7": 1.0})
        assert scales(process, ["c0", 7]).tolist() == [2, 1]
    named = participation_of(f"independent:{__name__}:chance_of")
    assert scales(named, IDS).tolist() == pytest.approx([1 / p for p in CHANCES.values()])
    assert participation_of(spelled(named)) == named


TABLE = """ward,age,chance,label
north,61,0.25,1
south,48,1,0
north,55,0.25,0
south,70,1.0,1
"""


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_chances_are_a_column_of_a_table_with_many_rows_per_client(tmp_path: Path, delimiter: str) -> None:
    path = tmp_path / "wards.csv"
    path.write_text(TABLE.replace(",", delimiter))
    process = participation_of(f"independent:{path}:ward:chance")
    assert process == pflego.Independent({"north": 0.25, "south": 1.0})
    assert participation_of(spelled(process)) == process


@pytest.mark.parametrize("names", [("north", "south"), ("7", "12")], ids=["texts", "numbers"])
def test_the_table_of_the_data_says_who_comes_how_often(tmp_path: Path, names: tuple[str, str]) -> None:
    path = tmp_path / "wards.csv"
    path.write_text(TABLE.replace("north", names[0]).replace("south", names[1]))
    federation = pflego.load(str(path), column="ward", drop=["chance"], test_share=0)
    process = participation_of(f"independent:{path}:ward:chance")
    assert isinstance(process, pflego.Independent)
    process.check_ids(federation.ids)
    by_name = dict(zip(map(str, federation.ids), scales(process, federation.ids).tolist(), strict=True))
    assert by_name == {names[0]: 4.0, names[1]: 1.0}


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("55,0.25", "55,0.5", "client 'north' has both 0.25 and 0.5"),
        ("55,0.25", "55,", "client 'north' has '', no probability"),
        ("55,0.25", "55,often", "client 'north' has 'often', no probability"),
        ("0.25", "0", "probability of client 'north'"),
        ("0.25", "1.5", "probability of client 'north' is at most 1"),
        ("0.25", "nan", "client 'north'"),
        ("chance", "odds", "must have one column 'chance'"),
        ("age", "ward", "must have one column 'ward'"),
        (TABLE, "", "must have one column 'ward'"),
        (TABLE, "ward,chance\n", "takes a dictionary"),
    ],
)
def test_a_column_that_gives_no_client_one_chance_is_refused(
    tmp_path: Path, old: str, new: str, reason: str
) -> None:
    path = tmp_path / "wards.csv"
    path.write_text(TABLE.replace(old, new))
    with pytest.raises(pflego.SettingError, match=reason):
        participation_of(f"independent:{path}:ward:chance")


@pytest.mark.parametrize("p", [0, -0.1, 1.1, float("nan"), "0.5", None, True])
def test_what_is_no_probability_is_refused(p: float) -> None:
    with pytest.raises(pflego.SettingError, match="probability of client 'a'"):
        pflego.Independent({"a": p})


@pytest.mark.parametrize(
    "text",
    [
        "independent:{}",
        "independent:{",
        "independent:[1]",
        "independent:nowhere.json",
        "independent:nowhere.csv",
        "independent:nowhere.csv:ward:chance",
        "independent:json:__name__",
        "daily:0.5",
        "daily:0.5-0.1",
        "daily:0.1-0.5/0",
        "estimated:binomial:0.2",
        "estimated:0:5",
    ],
)
def test_texts_that_are_no_process_are_refused(text: str) -> None:
    with pytest.raises(pflego.SettingError, match="participation"):
        participation_of(text)


def test_clients_without_a_chance_and_chances_without_a_client_are_refused() -> None:
    twin = world(clients=3)
    for chances, words in [
        ({"c0": 0.5, "c1": 0.5}, "no probability for 'c2'"),
        ({"c0": 0.5, "c1": 0.5, "c2": 0.5, "d": 0.5}, "'d', no client"),
    ]:
        with pytest.raises(pflego.SettingError, match=words):
            pflego.train(twin.federation, twin.model, pflego.PFLEGO(), participation=chances)  # type: ignore[arg-type]


class Lying:
    """A process of one's own whose chances are none."""

    def check_ids(self, ids: Sequence[ClientId]) -> None: ...

    def chances(self, ids: Sequence[ClientId], *, number: int, seed: int) -> F64:
        return np.zeros(len(ids))

    def draw_ids(self, ids: Sequence[ClientId], *, number: int, seed: int) -> Positions:
        return np.arange(len(ids))


def test_chances_of_an_own_process_are_checked() -> None:
    with pytest.raises(pflego.SettingError, match="chances above 0"):
        pflego.train(world().federation, world().model, pflego.PFLEGO(), participation=Lying())
    with pytest.raises(pflego.SettingError, match="chances above 0"):
        scales(participation_of(f"{__name__}:Lying"), IDS)


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_methods_that_keep_a_sum_over_all_clients_refuse_chances_that_differ(name: str) -> None:
    twin = world(clients=4)
    plans: list[dict[str, object]] = [
        {"participation": pflego.Independent(CHANCES)},
        {"population": pflego.Population(join={"c1": 2})},
    ]
    for plan in plans:
        with pytest.raises(pflego.SettingError, match="the same chance"):
            pflego.train(twin.federation, twin.model, methods()[name](), **plan)  # type: ignore[arg-type]
