"""What can be set: in tables, without them, in files, and where a method's names are others', too."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

import pflego
from pflego import SettingError
from pflego.algorithms.registry import method, methods, spelling
from pflego.declaration import Count, Positive
from pflego.runs.record import RECORD, TABLES, Tables, as_toml
from pflego.settings.experiment import Experiment
from pflego.settings.tables import Settings, as_tables, command, known, read_settings

FLAT: dict[str, object] = {
    "data": "digits", "data_seed": 1, "clients": 6, "model": "mlp", "model_seed": 2, "algorithm": "fedprox",
    "mu": 0.5, "steps": 3, "seed": 4, "rounds": 2, "participation": "2", "track": ["csv"],
}  # fmt: skip
TABLED: dict[str, dict[str, object]] = {
    "data": {"name": "digits", "seed": 1, "clients": 6},
    "model": {"name": "mlp", "seed": 2},
    "method": {"name": "fedprox", "mu": 0.5, "steps": 3},
    "run": {"seed": 4, "rounds": 2, "participation": "2", "track": ["csv"]},
}


def test_settings_have_their_tables_however_they_are_given() -> None:
    assert Settings.of(FLAT).tables == Settings.of(TABLED).tables == TABLED
    assert Settings.of(TABLED).flat == FLAT
    half = {"data": TABLED["data"], "run": TABLED["run"]}
    loose = {name: FLAT[name] for name in ("model", "model_seed", "algorithm", "mu", "steps")}
    assert Settings.of({**half, **loose}).tables == TABLED


def test_files_are_read_with_tables_and_without(tmp_path: Path) -> None:
    (tmp_path / "tables.toml").write_text(as_toml(TABLED))
    (tmp_path / "flat.toml").write_text(tomli_w.dumps(FLAT))
    for name in ("tables", "flat"):
        assert read_settings(tmp_path / f"{name}.toml") == FLAT
        assert Settings.read(tmp_path / f"{name}.toml").tables == TABLED


def test_names_of_the_command_line_are_understood_in_a_table_too(tmp_path: Path) -> None:
    tables: Tables = {"data": {"data": "digits", "data_seed": 1}, "method": {"algorithm": "fedavg"}}
    (tmp_path / "a.toml").write_text(as_toml(tables))
    for settings in (Settings.of(tables), Settings.read(tmp_path / "a.toml")):
        assert settings.tables["data"] == {"name": "digits", "seed": 1}
        assert settings.tables["method"] == {"name": "fedavg"}
        assert isinstance(settings.algorithm, pflego.FedAvg)


def test_a_runs_own_file_says_how_to_do_it_again(tmp_path: Path) -> None:
    trained = Experiment.build({**FLAT, "out": str(tmp_path / "a")}).train(progress=False)
    written = tomllib.loads((tmp_path / "a" / "settings.toml").read_text())
    assert list(written) == [*TABLES, RECORD]
    settings = Settings.read(tmp_path / "a" / "settings.toml")
    assert RECORD not in settings.flat
    assert settings.tables == {table: written[table] for table in TABLES}
    again = Experiment.build(settings.changed(out=None)).train(progress=False)
    assert [row["loss"] for row in again.history] == [row["loss"] for row in trained.history]


def test_what_is_not_given_is_what_was_declared() -> None:
    settings = Settings.of({})
    assert settings.tables == {table: {} for table in TABLES}
    assert isinstance(settings.algorithm, pflego.PFLEGO)
    wanted = {
        "data": "digits",
        "data_seed": None,
        "seed": 0,
        "rounds": 100,
        "steps": 50,
        "algorithm": "pflego",
    }
    assert {name: settings.value(name) for name in wanted} == wanted
    assert Settings.of({"seed": 3, "steps": None}).value("seed") == 3
    with pytest.raises(KeyError):
        settings.value("no such setting")


def test_a_change_is_one_of_a_copy() -> None:
    settings = Settings.of(FLAT)
    other = settings.changed(rounds=9, mu=None, data_seed=7)
    assert (other.value("rounds"), other.value("mu"), other.value("data_seed")) == (9, 0.25, 7)
    assert settings.tables == TABLED
    with pytest.raises(SettingError, match="rounds"):
        settings.changed(rounds=0)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"stepz": 3}, "unknown setting 'stepz': did you mean 'steps'"),
        ({"run": {"round": 3}}, "unknown setting 'round': did you mean 'rounds'"),
        ({"data": {"client": 3}}, "unknown setting 'client': did you mean 'clients'"),
        ({"model": {"depth": 3}}, "unknown setting 'depth'"),
        ({"training": {"rounds": 3}}, "unknown setting 'training'"),
        ({"run": 3}, "unknown setting 'run'"),
        ({"mu": 0.5}, "pflego has no setting 'mu'; its own are"),
        ({"run": {"steps": 3}}, r"steps belongs in \[method\], not in \[run\]"),
        ({"method": {"rounds": 3}}, r"rounds belongs in \[run\], not in \[method\]"),
        ({"model": {"clients": 3}}, r"clients belongs in \[data\], not in \[model\]"),
        ({"algorithm": "pflgo"}, "unknown algorithm 'pflgo': did you mean 'pflego'"),
        ({"algorithm": 3}, "algorithm must be a text"),
        ({"method": {"name": ["pflego"]}}, "algorithm must be a text"),
        ({"algorithm": "math:pi"}, "algorithm"),
        ({"data": {"name": 3}}, "data must be a text"),
        ({"data_seed": True}, "data_seed must be a whole number"),
        ({"clients": 0}, "clients must be a whole number above 0"),
        ({"rounds": "3"}, "rounds must be a whole number above 0"),
        ({"steps": 1.5}, "steps must be a whole number above 0"),
        ({"server_lr": "auto"}, "server_optimizer"),  # what does not go together is the method's to say
        ({"track": 3}, "track"),
        ({"drop": "a"}, "drop must be a list"),
    ],
    ids=str,
)
def test_what_is_wrong_is_refused_before_anything_is_made(given: dict[str, object], reason: str) -> None:
    with pytest.raises(SettingError, match=reason):
        Settings.of(given)


def test_a_setting_in_another_table_of_a_file_than_its_own_is_refused_where_it_would_be_mistaken(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.toml").write_text("[method]\nrounds = 3\n")
    with pytest.raises(SettingError, match=r"rounds belongs in \[run\]"):
        Settings.read(tmp_path / "a.toml")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"rounds = ", "not valid TOML"),
        (b"\xff\xfe", "not valid TOML"),
        (b"a = 1\na = 2\n", "not valid TOML"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "a.toml").write_bytes(content)
    with pytest.raises(SettingError, match=reason):
        read_settings(tmp_path / "a.toml")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "a.toml", tmp_path):
        with pytest.raises(SettingError, match="cannot read"):
            read_settings(path)


@method
class Guest(pflego.PFLEGO):
    """A method of somebody else's, some of whose settings are called like others'.

    Parameters
    ----------
    seed, alpha, rounds
        Of its own.
    """

    seed: Count = 1
    alpha: Positive = 0.5
    rounds: Count = 7


GUEST = f"{__name__}:Guest"


def test_a_methods_setting_that_is_called_like_another_has_a_name_of_its_own() -> None:
    names = known("method", Guest)
    assert {"method.seed", "method.alpha", "method.rounds", "steps"} <= names.keys()
    assert not {"seed", "alpha", "rounds"} & names.keys()
    assert command({"method.seed": 3, "seed": 4}) == "pflego run --method-seed 3 --seed 4"


@pytest.mark.parametrize(
    "others",
    [{}, {"seed": 8, "rounds": 9}, {"partition": "dirichlet", "alpha": 0.25}],
    ids=["none", "run", "data"],
)
def test_it_stays_the_methods_whether_or_not_the_other_is_given(
    tmp_path: Path, others: dict[str, object]
) -> None:
    own = {"seed": 3, "alpha": 0.125}
    settings = Settings.of({"method": {"name": GUEST, **own}, **others})
    (tmp_path / "a.toml").write_text(as_toml(settings.tables))
    (tmp_path / "flat.toml").write_text(tomli_w.dumps(settings.flat))
    for again in (
        settings,
        settings.changed(steps=50),
        Settings.of(settings.flat),
        Settings.of(as_tables(settings.flat)),
        Settings.read(tmp_path / "a.toml"),
        Settings.read(tmp_path / "flat.toml"),
    ):
        guest = again.algorithm
        assert isinstance(guest, Guest)
        assert (guest.seed, guest.alpha, guest.rounds) == (3, 0.125, 7)
        assert [again.value(f"method.{name}") for name in ("seed", "alpha", "rounds")] == [3, 0.125, 7]
        wanted = {"seed": 0, "rounds": 100, "alpha": None, **others}
        assert {name: again.value(name) for name in wanted} == wanted
    assert settings.changed(**{"method.seed": 5, "seed": 6}).value("method.seed") == 5
    with pytest.raises(SettingError, match="alpha must be a number above 0, not -1"):
        settings.changed(**{"method.alpha": -1})


def test_a_run_with_such_a_method_is_opened_and_resumed(tmp_path: Path) -> None:
    given = {**FLAT, "algorithm": GUEST, "mu": None, "method.seed": 3, "track": None, "out": str(tmp_path)}
    trained = Experiment.build(given).train(progress=False)
    assert trained.settings["method"]["name"] == GUEST
    assert (trained.settings["method"]["seed"], trained.settings["run"]["seed"]) == (3, 4)
    with pytest.raises(pflego.UntrustedError):
        pflego.open_run(tmp_path)
    opened = pflego.open_run(tmp_path, trust=True)
    assert opened.algorithm == Guest(steps=3, seed=3)
    assert opened.plan.seed == 4
    resumed = Experiment.build({**read_settings(tmp_path / "settings.toml"), "rounds": 3}).train(
        resume=True, progress=False
    )
    assert len(resumed.history) == 3
    with pytest.raises(pflego.UserError, match="seed was 3, is now 5"):
        Experiment.build({**given, "method.seed": 5}).train(resume=True, progress=False)


def test_a_guest_is_called_by_its_module_and_is_none_of_the_packages_methods() -> None:
    assert spelling(Guest) == GUEST
    assert "guest" not in methods()
    with pytest.raises(SettingError, match="unknown algorithm 'guest'"):
        Settings.of({"algorithm": "guest"})


@pytest.mark.parametrize("name", methods())
def test_a_name_on_the_command_line_means_one_thing(name: str) -> None:
    kind = methods()[name]
    names = [called for table in TABLES for called in known(table, kind if table == "method" else None)]
    assert len(names) == len(set(names))
    assert {one.parameter for one in known("method", kind).values()} >= {f.name for f in fields(kind)}


@pytest.mark.parametrize("name", methods())
def test_a_methods_settings_are_written_and_read_as_they_are(tmp_path: Path, name: str) -> None:
    made = methods()[name]()
    (tmp_path / "a.toml").write_text(as_toml({"method": {"name": name, **made.settings()}}))
    assert Settings.read(tmp_path / "a.toml").algorithm == made


plain: dict[str, st.SearchStrategy[Any]] = {
    "data": st.sampled_from(["digits", "patients.csv"]),
    "data_seed": st.integers(),
    "model": st.sampled_from(["mlp", "mine:build"]),
    "clients": st.integers(1, 10**6),
    "alpha": st.floats(1e-6, 1e6),
    "steps": st.integers(1, 10**6),
    "client_lr": st.just("auto") | st.floats(1e-6, 1e6),
    "method.alpha": st.floats(1e-6, 1e6),
    "method.seed": st.integers(0, 10**6),
    "seed": st.integers(),
    "deadline": st.floats(1e-3, 1e3),
    "missing": st.sampled_from(["zero", "renormalise"]),
    "drop": st.lists(st.text("abc", max_size=3), max_size=3),
}


@given(st.fixed_dictionaries({"algorithm": st.just(GUEST)}, optional=plain))
def test_settings_come_back_from_tables_and_from_their_text(settings: dict[str, object]) -> None:
    sorted_out = Settings.of(settings)
    assert sorted_out.flat == settings
    assert Settings.of(sorted_out.tables).flat == settings
    assert Settings.of(tomllib.loads(as_toml(sorted_out.tables))).tables == sorted_out.tables


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[run]\nsteps = 3\n", "no setting of [run]"),
        ("[data]\nrounds = 3\n", "rounds belongs in [run]"),
        ("rounds = 3\n[run]\nrounds = 4\n", "rounds twice"),
    ],
)
def test_a_file_with_a_setting_in_the_wrong_table_or_twice_is_refused(
    tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    with pytest.raises(SettingError, match=re.escape(words)):
        read_settings(file)
