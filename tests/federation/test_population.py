"""Clients that come and go: rounds are those of their members, and of nobody else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pflego
from pflego.exchange.weighting import WeightingName
from pflego.federation.draws import Participation, cohort, scales
from pflego.federation.population import population_of
from pflego.federation.roster import ClientId
from pflego.learning.theory import head_smoothness
from pflego.report.presence import who_took_part
from pflego.runs.folder import RunFolder
from pflego.runs.history import HistoryRow
from pflego.runs.run import Run
from tests.support.cases import often
from tests.support.reference import (
    StopAfter,
    World,
    algorithm_1,
    assert_follows,
    assert_identical,
    assert_same_weights,
    gradients,
    world,
)

ROUNDS, STEPS = 10, 7
POPULATION = pflego.Population(
    join={"c4": 4, "c5": 6, "c1": 8}, leave={"c0": 5, "c1": 3, "c4": 9}, steps=STEPS
)
# by round, who of c0 to c5 is there: c1 goes and comes back, c4 comes and goes
THERE = [
    {0, 1, 2, 3}, {0, 1, 2, 3}, {0, 2, 3}, {0, 2, 3, 4}, {2, 3, 4}, {2, 3, 4, 5}, {2, 3, 4, 5},
    {1, 2, 3, 4, 5}, {1, 2, 3, 5}, {1, 2, 3, 5},
]  # fmt: skip
ALGORITHM = pflego.PFLEGO(steps=3, client_lr=0.2, server_lr=0.1, server_optimizer="sgd", head_step="exact")


def by_round(seed: int, number: int) -> set[str]:
    return {f"c{i}" for i in THERE[number - 1]}


def train(twin: World, **options: object) -> Run:
    given: dict[str, object] = {
        "rounds": ROUNDS, "participation": pflego.Binomial(0.6), "population": POPULATION, "seed": 3,
        "evaluate_every": 1,
    }  # fmt: skip
    algorithm = options.pop("algorithm", ALGORITHM)
    return pflego.train(twin.federation, twin.model, algorithm, **{**given, **options})  # type: ignore[arg-type]


def play(twin: World, process: Participation, weighting: WeightingName) -> list[list[int]]:
    """All rounds in NumPy: alpha_i, I and pi_i of each are those of its members."""
    drawn, seen = [], set(THERE[0])
    for number, there in enumerate(THERE, start=1):
        members = sorted(there)
        for new in there - seen:
            site = twin.sites[new]
            rate = 1 / head_smoothness(torch.from_numpy(twin.net.phi(site.x)), twin.federation.task)
            for _ in range(STEPS):
                twin.heads[new] = twin.heads[new] - rate * gradients(twin.net, twin.heads[new], site)[2]
        seen |= there
        ids: list[ClientId] = [f"c{i}" for i in members]
        chosen = [members[k] for k in cohort(process, ids, seed=3, number=number)]
        counts = np.array(
            [(twin.sites[i].n if weighting == "samples" else 1) * (i in there) for i in range(6)]
        )
        inverse = dict(zip(members, scales(process, ids, number=number, seed=3), strict=True))
        algorithm_1(
            twin,
            [chosen],
            scales=[inverse.get(i, 0.0) for i in range(6)],
            alphas=(counts / counts.sum()).tolist(),
            tau=3,
            beta=0.2,
            rho=0.1,
            exact=True,
        )
        drawn.append(chosen)
    return drawn


@pytest.mark.parametrize("weighting", often(["samples", "equal"]))
@pytest.mark.parametrize(
    "process",
    [
        pflego.Fixed(2),
        pflego.Binomial(0.6),
        pflego.Everyone(),
        pflego.Independent({f"c{i}": 0.3 + 0.1 * i for i in range(6)}),
    ],
    ids=["fixed", "binomial", "everyone", "independent"],
)
def test_rounds_are_those_of_their_members(process: Participation, weighting: WeightingName) -> None:
    twin = world(clients=6)
    run = train(twin, participation=process, weighting=weighting)
    drawn = play(twin, process, weighting)
    assert [run.participants(t) for t in range(1, 11)] == [[f"c{i}" for i in chosen] for chosen in drawn]
    assert_follows(run, twin)
    assert [row["members"] for row in run.history] == [len(there) for there in THERE]
    assert [row["joined"] for row in run.history] == [0, 0, 0, 1, 0, 1, 0, 1, 0, 0]
    assert [row["left"] for row in run.history] == [0, 0, 1, 0, 1, 0, 0, 0, 1, 0]


def test_a_function_of_seed_and_round_says_the_same() -> None:
    mapped = train(world(clients=6))
    told = train(world(clients=6), population=pflego.Population(members=by_round, steps=STEPS))
    assert_identical(told, mapped)


def test_everyone_is_those_who_are_members() -> None:
    run = train(world(clients=6))
    for number, there in enumerate(THERE, start=1):
        assert {i for i, figure in enumerate(run.evaluations[number]) if figure is not None} == there
    last = [figure for figure in run.evaluations[10] if figure is not None]
    assert run.history[-1]["everyone_accuracy"] == pytest.approx(np.mean(last))  # four samples each


class Archive(pflego.Callback):
    """Keeps c1's head after every round."""

    def __init__(self) -> None:
        self.heads: list[torch.Tensor] = []

    def on_round(self, run: Run, row: HistoryRow) -> None:
        self.heads.append(run.states["c1"]["head"].clone())


def test_who_leaves_is_archived_and_comes_back_to_its_head() -> None:
    archive = Archive()
    run = train(world(clients=6), participation=pflego.Everyone(), callbacks=[archive])
    for number in range(2, 7):  # gone from round 3 to 7
        assert torch.equal(archive.heads[number], archive.heads[1])
    assert not torch.equal(archive.heads[7], archive.heads[1])
    without = pflego.Population(
        join={k: v for k, v in POPULATION.join.items() if k != "c1"}, leave=POPULATION.leave, steps=STEPS
    )
    gone = train(world(clients=6), participation=pflego.Everyone(), population=without)
    assert torch.equal(gone.states["c1"]["head"], archive.heads[1])
    assert not torch.equal(gone.shared["0.weight"], run.shared["0.weight"])


@pytest.mark.parametrize("states", ["memory", "disk"])
def test_interrupted_around_joins_and_leaves_a_run_ends_with_the_same_bits(
    tmp_path: Path, states: str
) -> None:
    options: dict[str, object] = {
        "algorithm": pflego.PFLEGO(steps=3),
        "states": states,
        "checkpoint_every": 2,
    }
    whole = train(world(clients=6), out=tmp_path / "whole", **options)
    for stop in (3, 4, 5, 8):
        with pytest.raises(KeyboardInterrupt):
            train(
                world(clients=6),
                out=tmp_path / "cut",
                resume=stop > 3,
                callbacks=[StopAfter(stop)],
                **options,
            )
    resumed = train(world(clients=6), out=tmp_path / "cut", resume=True, **options)
    assert_identical(resumed, whole)
    twin = world(clients=6)
    opened = pflego.open_run(tmp_path / "cut", federation=twin.federation, model=twin.model)
    assert opened.plan.population == POPULATION
    assert [opened.participants(t) for t in range(1, 11)] == [whole.participants(t) for t in range(1, 11)]
    assert_same_weights(opened.states["c4"], whole.states["c4"])
    page = opened.report(tmp_path / "report.html").read_text()
    assert "3 to 5 members at a time" in page


def test_the_picture_of_who_took_part_leaves_out_who_was_no_member() -> None:
    run = train(world(clients=6), participation=pflego.Everyone())
    visits, picture = who_took_part(run)
    assert visits == [sum(i in there for there in THERE) for i in range(6)]
    assert picture.shares == [[1.0 if i in there else None for there in THERE] for i in range(6)]


@pytest.mark.thorough
def test_a_run_killed_around_joins_and_leaves_ends_as_if_it_never_was(tmp_path: Path) -> None:
    """SIGKILL a real process a moment after a round in which somebody came or went."""
    events = {"join": {"2": 40, "5": 80, "1": 120}, "leave": {"3": 60, "1": 30}}
    (tmp_path / "population.json").write_text(json.dumps(events))
    options = [
        "--clients", "8", "--participation", "3", "--rounds", "160", "--steps", "20", "--evaluate-every", "50",
        "--population", str(tmp_path / "population.json"),
    ]  # fmt: skip

    def start(out: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "pflego", "run", *options, "--out", str(tmp_path / out), "--resume"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    assert start("whole").wait() == 0
    metrics = tmp_path / "killed" / "metrics.jsonl"
    for event in (30, 40, 80, 119):
        process = start("killed")
        while process.poll() is None and (
            not metrics.exists() or metrics.read_text().count("\n") < event - 1
        ):
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert start("killed").wait() == 0
    whole, killed = (RunFolder(tmp_path / name).load() for name in ("whole", "killed"))
    assert whole is not None
    assert killed is not None
    assert_same_weights(killed.shared, whole.shared)
    assert killed.states.keys() == whole.states.keys()
    for client, state in whole.states.items():
        assert_same_weights(killed.states[client], state)


ROUND = st.integers(1, 12)


@given(st.sets(ROUND, max_size=4), st.sets(ROUND, max_size=4), ROUND)
def test_who_is_there_when(come: set[int], gone: set[int], number: int) -> None:
    """Played through round by round: absent at first if it joins before it leaves, or never leaves."""
    gone -= come
    population = pflego.Population(
        join={"a": list(come)} if come else {}, leave={"a": list(gone)} if gone else {}
    )
    here = not come or (bool(gone) and min(gone) < min(come))
    for t in range(1, number + 1):
        here = True if t in come else False if t in gone else here
    assert population.there(["a", "b"], number=number, seed=0).tolist() == [here, True]
    assert population_of(str(population)) == population
    told = pflego.Population()
    for t in sorted(come | gone):
        told = told.with_event("a", t, comes=t not in come).with_event("a", t, comes=t in come)
    assert told == population


@pytest.mark.parametrize(
    ("population", "words"),
    [
        (pflego.Population(join={"d": 3}), "no client 'd'"),
        (pflego.Population(leave={f"c{i}": 3 for i in range(6)}), "nobody is a member in round 3"),
        (pflego.Population(members=lambda seed, number: ["d"]), "no client 'd'"),
        ("nowhere.json", "cannot read"),
        ('{"join": {"c1": 0}}', "whole number above 0"),
        ('{"join": {"c1": []}}', "names no round"),
        ('{"join": {"c1": [3, "4"]}}', "whole number above 0"),
        ('{"joins": {}}', "'joins' is unknown"),
        ("{", "not valid JSON"),
        (3, "must be a Population"),
    ],
)
def test_what_cannot_be_is_refused(population: object, words: str) -> None:
    with pytest.raises(pflego.SettingError, match=words):
        train(world(clients=6), population=population)


def test_rounds_with_too_few_members_are_refused_before_the_first() -> None:
    with pytest.raises(pflego.SettingError, match=r"in round 3 there are 3 members"):
        train(world(clients=6), participation=4)
    with pytest.raises(pflego.SettingError, match="there all along"):
        train(world(clients=6), objective=pflego.Agnostic(0.1))
    with pytest.raises(pflego.SettingError, match="joins and leaves in round 3"):
        pflego.Population(join={"a": 3}, leave={"a": 3})
    with pytest.raises(pflego.SettingError, match="not both"):
        pflego.Population(join={"a": 3}, members=by_round)
