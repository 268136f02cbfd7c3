"""A participation process of one's own goes wherever one of the package's does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import pflego
from pflego.federation.draws import Equal, Positions, cohort, spelled
from pflego.federation.participation import participation_of
from pflego.runs.run import Run
from tests.support.own_parts import Neighbours
from tests.support.reference import (
    StopAfter,
    World,
    algorithm_1,
    assert_follows,
    assert_identical,
    cohorts,
    world,
)

ALGORITHM = pflego.PFLEGO(steps=3, client_lr=0.2, server_lr=0.05, server_optimizer="sgd")


@dataclass(frozen=True)
class Leading:
    """Client 0 and one more."""

    more: int

    def check(self, clients: int) -> None: ...

    def expected(self, clients: int) -> float:
        return 1 + self.more

    def draw(self, clients: int, generator: np.random.Generator) -> Positions:
        return np.concatenate([[0], 1 + generator.choice(clients - 1, self.more, replace=False)])


def train(twin: World, participation: Equal | str, **options: object) -> Run:
    return pflego.train(
        twin.federation,
        twin.model,
        ALGORITHM,
        rounds=6,
        participation=participation,
        seed=2,
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("process", [Neighbours(), Leading(2)], ids=spelled)
def test_rounds_are_of_the_cohorts_that_it_draws(process: Equal) -> None:
    twin = world()
    run = train(twin, process)
    drawn = cohorts(process, 5, rounds=6, seed=2)
    for number, members in enumerate(drawn, start=1):
        assert run.participants(number) == [f"c{i}" for i in members]
        assert run.history[number - 1]["participants"] == len(members)
    assert len({tuple(members) for members in drawn}) > 1
    algorithm_1(twin, drawn, r=process.expected(5), tau=3, beta=0.2, rho=0.05)  # I/r is the process's own
    assert_follows(run, twin)


def test_a_federation_that_it_refuses_is_refused() -> None:
    twin = world(clients=2)
    with pytest.raises(pflego.SettingError, match="neighbours need at least 3"):
        train(twin, Neighbours())


def test_cost_and_report_of_such_a_run(tmp_path: Path) -> None:
    run = train(world(), Neighbours())
    cost = run.cost()
    assert (cost.forward_passes, cost.backward_passes) == (1, 1)
    assert cost.bytes_up == cost.bytes_down == 8 * (4 * 6 + 4)
    page = run.report(tmp_path / "report.html", alone=True).read_text()
    assert "tests.support.own_parts.Neighbours" in page


def test_such_a_run_resumes_exactly_and_opens_with_its_process(tmp_path: Path) -> None:
    """Two objects of a class that says nothing of itself are taken for the same process."""
    twin = world()
    whole = train(twin, Neighbours())
    with pytest.raises(KeyboardInterrupt):
        train(twin, Neighbours(), out=tmp_path, callbacks=[StopAfter(3)])
    assert_identical(train(twin, Neighbours(), out=tmp_path, resume=True), whole)
    with pytest.raises(pflego.UserError, match="participation was"):
        train(twin, Leading(1), out=tmp_path, resume=True)
    opened = pflego.open_run(
        tmp_path, federation=twin.federation, model=twin.model, participation=Neighbours()
    )
    assert_identical(opened, whole)
    for number in range(1, 7):
        assert opened.participants(number) == whole.participants(number)
    assert opened.cost().flops == whole.cost().flops
    assert opened.report(tmp_path / "again.html").exists()


def test_without_its_process_such_a_run_does_not_open(tmp_path: Path) -> None:
    twin = world()
    for process in (Neighbours(), Leading(1)):
        train(twin, process, out=tmp_path / spelled(process))
        with pytest.raises(pflego.UserError, match=r"open_run\(folder, participation=\.\.\.\)"):
            pflego.open_run(tmp_path / spelled(process), federation=twin.federation, model=twin.model)


def test_by_its_name_it_is_found_again(tmp_path: Path) -> None:
    twin = world()
    name = "tests.support.own_parts:Neighbours"
    named, given = train(twin, name, out=tmp_path), train(twin, Neighbours())
    assert_identical(named, given)
    assert f'participation = "{name}"' in (tmp_path / "settings.toml").read_text()
    with pytest.raises(pflego.UntrustedError, match="own_parts:Neighbours"):
        pflego.open_run(tmp_path, federation=twin.federation, model=twin.model)
    opened = pflego.open_run(tmp_path, federation=twin.federation, model=twin.model, trust=True)
    assert opened.participants(4) == given.participants(4)


def test_a_class_that_needs_arguments_is_no_name_of_a_process() -> None:
    with pytest.raises(pflego.SettingError, match="cannot be made without arguments"):
        participation_of(f"{__name__}:Leading")


@pytest.mark.parametrize("drawn", [[0, 0], [5], [-1], [1, 7, 1]], ids=str)
def test_a_cohort_that_is_none_is_refused(drawn: list[int]) -> None:
    class Careless(Neighbours):
        def draw(self, clients: int, generator: np.random.Generator) -> Positions:
            return np.array(drawn)

    with pytest.raises(pflego.SettingError, match="in round 3: a cohort is some of the positions 0 to 4"):
        cohort(Careless(), range(5), seed=0, number=3)
