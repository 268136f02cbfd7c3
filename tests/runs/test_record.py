"""A run's settings as they are written down, and what of them may differ when the run is resumed."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pflego
from pflego.declaration import declared
from pflego.engines.local import LocalEngine
from pflego.runs.folder import RunFolder
from pflego.runs.record import (
    FLAT,
    RECORD,
    Tables,
    as_toml,
    differences,
    flat,
    in_table,
    joined_after,
    record,
)
from pflego.training.train import may_change, train
from tests.support.reference import assert_identical, world

BASE: dict[str, Any] = {
    "rounds": 2,
    "participation": 2,
    "seed": 5,
    "evaluate_every": 1,
    "checkpoint_every": 1,
}
# Of every setting of `train` that must stay as it was: another value.
FIXED: dict[str, dict[str, Any]] = {
    "participation": {"participation": 3},
    "dropout": {"dropout": 0.25},
    "deadline": {"deadline": 100.0},
    "burst": {"burst": 3.0},
    "bandwidth": {"speed": pflego.Speed(bandwidth=1e6)},
    "latency": {"speed": pflego.Speed(latency=0.1)},
    "samples_per_second": {"speed": pflego.Speed(samples_per_second=10.0)},
    "speed_spread": {"speed": pflego.Speed(spread=0.0)},
    "missing": {"missing": "renormalise"},
    "weighting": {"weighting": "equal"},
    "population": {"population": pflego.Population(join={"c4": 2})},
    "objective": {"objective": pflego.QFair(1.0)},
    "aggregation": {"aggregation": pflego.Median()},
    "privacy": {"privacy": pflego.ClientPrivacy(noise=0.0)},
    "liars": {"liars": "sign@0.4"},
    "compression": {"compression": "quantise:8"},
    "slice_size": {"slice_size": 3},
    "memory": {"memory": "64MB"},
    "speedup": {"speedup": "gram"},
    "trunk": {"trunk": "always"},
    "seed": {"seed": 6},
    "evaluate_every": {"evaluate_every": 2},
    "evaluate_adapted": {"evaluate_adapted": True},
    "evaluate_training": {"evaluate_training": True},
}
BESIDE: dict[str, dict[str, Any]] = {"privacy": {"weighting": "equal"}}  # what another value asks for
FREE: dict[str, dict[str, Any]] = {
    "rounds": {"rounds": 4},
    "device": {"device": "cpu"},
    "engine": {"engine": LocalEngine},  # as one of somebody's own is given
    "out": {},  # the folder was moved
    "checkpoint_every": {"checkpoint_every": 3},
    "keep": {"keep": 2},
    "states": {"states": "disk"},
}


def run(out: Path | None, method: pflego.Algorithm | None = None, **options: Any) -> pflego.Run:
    twin = world(dtype=torch.float32)
    chosen = {**BASE, **options}
    return pflego.train(twin.federation, twin.model, method or pflego.PFLEGO(steps=3), out=out, **chosen)


def test_every_setting_of_a_run_either_may_change_or_may_not() -> None:
    assert may_change() == FREE.keys()
    assert declared(train).keys() == FREE.keys() | FIXED.keys()


@pytest.mark.parametrize("name", FIXED)
def test_what_decides_the_numbers_may_not_change(tmp_path: Path, name: str) -> None:
    options = BESIDE.get(name, {})
    run(tmp_path, **options)
    before = (tmp_path / "settings.toml").read_bytes()
    with pytest.raises(pflego.UserError, match=f"other settings: {name} was .*, is now ") as refusal:
        run(tmp_path, resume=True, **options, **FIXED[name])
    assert ";" not in str(refusal.value)  # and nothing else has
    assert (tmp_path / "settings.toml").read_bytes() == before


@pytest.mark.parametrize("name", FREE)
def test_what_does_not_may(tmp_path: Path, name: str) -> None:
    run(tmp_path / "a")
    if name == "out":
        (tmp_path / "a").rename(tmp_path / "b")
    folder = tmp_path / ("b" if name == "out" else "a")
    resumed = run(folder, resume=True, **{"rounds": 4, **FREE[name]})
    assert_identical(resumed, run(None, rounds=4))
    settings = RunFolder(folder).settings()["run"]
    wanted = {**BASE, "rounds": 4, "out": str(folder), "participation": "2", **FREE[name]}
    assert {
        key: value for key, value in wanted.items() if settings[key] != value and not callable(value)
    } == {}


def test_a_method_and_its_settings_may_not_change(tmp_path: Path) -> None:
    run(tmp_path)
    with pytest.raises(pflego.UserError, match=r"other settings: steps was 3, is now 4$"):
        run(tmp_path, pflego.PFLEGO(steps=4), resume=True)
    with pytest.raises(pflego.UserError, match="algorithm was 'pflego', is now 'fedper'"):
        run(tmp_path, pflego.FedPer(steps=3), resume=True)


class _Sum:
    """A rule that says nothing of itself in settings."""

    additive = True

    def combine(self, contributions: Any, weights: Any) -> Any:
        return pflego.Mean().combine(contributions, weights)

    def __repr__(self) -> str:
        return "Sum()"


@pytest.mark.parametrize("option", [{"aggregation": _Sum()}, {"transforms": [pflego.Clip(1.0)]}], ids=str)
def test_what_only_python_gives_may_not_change_either(tmp_path: Path, option: dict[str, Any]) -> None:
    run(tmp_path / "plain")
    with pytest.raises(pflego.UserError, match=f"{next(iter(option))} was "):
        run(tmp_path / "plain", resume=True, **option)
    whole = run(tmp_path / "other", rounds=4, **option)
    run(tmp_path / "stopped", **option)
    assert_identical(run(tmp_path / "stopped", resume=True, **{"rounds": 4, **option}), whole)
    with pytest.raises(pflego.UserError, match=f"{next(iter(option))} was "):
        run(tmp_path / "other", rounds=4, resume=True)


def test_the_record_says_what_a_run_was_made_with_and_keeps_saying_it(tmp_path: Path) -> None:
    made = run(tmp_path).settings[RECORD]
    assert torch.__version__.startswith(str(made["torch"]))
    path = tmp_path / "settings.toml"
    path.write_text(path.read_text().replace(f'torch = "{made["torch"]}"', 'torch = "2.0.0"'))
    resumed = run(tmp_path, rounds=4, resume=True)
    assert resumed.settings[RECORD] == {**made, "torch": "2.0.0"}
    assert RunFolder(tmp_path).settings()[RECORD] == {**made, "torch": "2.0.0"}


OLD: Tables = {
    "data": {"name": "digits", "seed": 1, "clients": 20},
    "model": {"name": "mlp", "seed": 2},
    "method": {"name": "guest:Method", "rounds": 7, "steps": 3},
    "run": {"rounds": 5, "seed": 3, "deadline": None},
    RECORD: {"federation": "f", "model": "m", "torch": "2.6"},
}


def changed(table: str, **entries: object) -> Tables:
    return {**OLD, table: {**OLD[table], **entries}}


@pytest.mark.parametrize(
    ("new", "words"),
    [
        (OLD, []),
        (changed("run", rounds=6), []),  # may
        (changed("method", rounds=8), ["rounds was 7, is now 8"]),  # is the method's: may not
        (changed("data", seed=4), ["data_seed was 1, is now 4"]),
        (changed("data", name="mnist"), ["data was 'digits', is now 'mnist'"]),
        (changed("model", seed=4), ["model_seed was 2, is now 4"]),
        (
            changed("run", seed=4, deadline=2.0),
            ["deadline was 'not set', is now 2.0", "seed was 3, is now 4"],
        ),
        (changed("run", seed=None), ["seed was 3, is now 'not set'"]),
        (changed(RECORD, torch="3.0", python="4"), []),
        (changed(RECORD, federation="g"), ["the clients or their data are not the same"]),
        (changed(RECORD, model="n"), ["the model's starting weights are not the same"]),
        (changed("run", seed=np.int64(3)), []),
    ],
)
def test_differences_are_named_as_people_set_them(new: Tables, words: list[str]) -> None:
    assert differences(OLD, new, but={"rounds"}) == words
    assert bool(differences(new, OLD, but={"rounds"})) == bool(words)


def test_settings_are_written_as_toml_without_what_is_not_set() -> None:
    tables = {
        "run": {
            "seed": np.int64(3),
            "rate": np.float32(0.5),
            "deadline": None,
            "names": ["a"],
            "deep": {"x": 1},
        }
    }
    read = tomllib.loads(as_toml(tables))
    assert read == {"run": {"seed": 3, "rate": 0.5, "names": ["a"], "deep": {"x": 1}}}
    assert type(read["run"]["seed"]) is int


NAMES = {
    "data": ["name", "seed", "clients", "alpha"],
    "model": ["name", "seed"],
    "method": ["name", "steps", "seed", "alpha", "rounds"],
    "run": ["seed", "rounds"],
}
values = st.integers() | st.booleans() | st.text(max_size=5) | st.none()
some_tables = st.fixed_dictionaries(
    {
        table: st.fixed_dictionaries({}, optional=dict.fromkeys(names, values))
        for table, names in NAMES.items()
    }
)


@given(some_tables)
def test_without_tables_nothing_is_lost(tables: Tables) -> None:
    there = [value for own in tables.values() for value in own.values() if value is not None]
    assert sorted(map(repr, flat(tables).values())) == sorted(map(repr, there))


def test_a_methods_setting_gives_way_to_a_name_that_is_taken_whether_it_is_given_or_not() -> None:
    tables: Tables = {"method": {"name": "guest:Method", "alpha": 0.1, "steps": 3}}
    assert flat(tables) == {"algorithm": "guest:Method", "alpha": 0.1, "steps": 3}
    assert flat(tables, taken=["alpha"]) == {"algorithm": "guest:Method", "method.alpha": 0.1, "steps": 3}


@pytest.mark.parametrize("table", ["data", "model", "method"])
def test_names_in_a_table_are_those_of_python_without_it(table: str) -> None:
    own: dict[str, object] = {spelled: n for n, (t, spelled) in enumerate(FLAT) if t == table}
    assert in_table(flat({table: own})) == own


def test_versions_stand_beside_fingerprints() -> None:
    made = record("f", "m")
    assert (made["federation"], made["model"]) == ("f", "m")
    assert made.keys() == {"federation", "model", "pflego", "torch", "python"}


def test_who_joined_later_is_in_the_record() -> None:
    assert joined_after({}) == []
    assert joined_after({RECORD: {"joined_after": [2, 5]}}) == [2, 5]
