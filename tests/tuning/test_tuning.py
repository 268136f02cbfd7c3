from __future__ import annotations

import csv
import json
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import pflego
from pflego.report.words import Metric
from pflego.runs.history import HistoryRow
from pflego.settings.experiment import Experiment
from pflego.settings.tables import as_tables, read_settings
from pflego.tuning import Attempt, Range, Space, Tuning, tune
from pflego.tuning.drawing import draw
from tests.support.reference import world

pytest.importorskip("optuna", reason="optuna is not installed: pip install 'pflego[search]'")

OVER: dict[str, Space] = {
    "server_lr": Range(1e-5, 1e-1, log=True),
    "steps": [2, 5],
    "momentum": Range(0.1, 0.9),
}


def write_data(path: Path, *, test_seed: int = 1, regression: bool = False) -> str:
    """Three classes that can be told apart, or a line with noise; the seed decides the test data alone."""
    generator, other = np.random.default_rng(0), np.random.default_rng(test_seed)
    y = np.arange(240) % 3
    x = (generator.normal(size=(240, 4)) + 1.5 * y[:, None]).astype(np.float32)
    labels = x[:, 0] + 0.1 * generator.normal(size=240) if regression else y
    unseen = (other.normal(size=(30, 4)), other.permutation(labels)[:30])
    np.savez(path, x_train=x, y_train=labels, x_test=unseen[0].astype(np.float32), y_test=unseen[1])
    return str(path)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    data = write_data(tmp_path_factory.mktemp("data") / "small.npz")
    return {"data": data, "clients": 4, "rounds": 6, "participation": "2", "device": "cpu"}


@pytest.fixture(scope="module")
def tuned(settings: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tuning]:
    folder = tmp_path_factory.mktemp("tuning")
    return folder, tune(settings, OVER, out=folder, trials=12)


def timeless(attempts: list[Attempt]) -> list[tuple[object, ...]]:
    return [(a.number, a.values, a.ended, a.figure, a.curve) for a in attempts]


def stop_at(number: int) -> Callable[[Attempt, Metric], None]:
    def told(attempt: Attempt, metric: Metric) -> None:
        if attempt.number == number:
            raise KeyboardInterrupt

    return told


def stop_in_a_trial(watch: object, run: pflego.Run, row: HistoryRow) -> None:
    if row["round"] == 2:
        raise KeyboardInterrupt


def test_a_trial_is_judged_by_training_data_that_it_was_not_trained_on(
    settings: dict[str, object], tuned: tuple[Path, Tuning]
) -> None:
    _, tuning = tuned
    federation = pflego.load(str(settings["data"]), clients=4)
    held_out = pflego.data.validation.hold_out(federation)
    experiment = Experiment.build({**settings, **tuning.best.values}, federation=held_out)
    assert tuning.best.figure == experiment.train(progress=False).history[-1]["everyone_accuracy"]
    assert sum(len(client.y_test) for client in held_out) + held_out.samples == federation.samples


def test_the_test_data_change_nothing(
    settings: dict[str, object], tuned: tuple[Path, Tuning], tmp_path: Path
) -> None:
    other = write_data(tmp_path / "small.npz", test_seed=2)
    again = tune({**settings, "data": other}, OVER, out=tmp_path / "out", trials=4)
    assert timeless(again.attempts) == timeless(tuned[1].attempts[:4])


def test_the_first_trial_is_the_settings_as_they_are(tuned: tuple[Path, Tuning]) -> None:
    assert tuned[1].attempts[0].values["server_lr"] != 0.003  # 50 steps, the default, is not in the list
    folder = tuned[0].parent / "from-defaults"
    given: dict[str, object] = {"rounds": 2, "clients": 5, "device": "cpu", "steps": 5}
    [first] = tune(given, {**OVER, "momentum": [0.5, 0.9]}, out=folder, trials=1).attempts
    assert first.values == {"server_lr": 0.003, "steps": 5, "momentum": 0.9}


def test_values_are_those_asked_for(tuned: tuple[Path, Tuning]) -> None:
    for attempt in tuned[1].attempts:
        rate, momentum = attempt.values["server_lr"], attempt.values["momentum"]
        assert isinstance(rate, float)
        assert 1e-5 <= rate <= 1e-1
        assert attempt.values["steps"] in (2, 5)
        assert isinstance(momentum, float)
        assert 0.1 <= momentum <= 0.9
    assert len({attempt.values["server_lr"] for attempt in tuned[1].attempts}) == 12


def test_hopeless_trials_are_given_up_after_a_third_of_their_rounds(tuned: tuple[Path, Tuning]) -> None:
    attempts = tuned[1].attempts
    assert [attempt.ended for attempt in attempts[:5]] == ["finished"] * 5
    given_up = [attempt for attempt in attempts if attempt.ended == "given up"]
    assert given_up
    for attempt in given_up:
        last, figure = attempt.curve[-1]
        assert 2 <= last < 6
        before = attempts[: attempt.number - 1]
        others = [dict(other.curve)[last] for other in before if other.ended == "finished"]
        assert max(value for _, value in attempt.curve) < np.median(others)
        assert attempt.figure == figure


def test_a_search_that_is_stopped_anywhere_ends_like_one_that_was_not(
    settings: dict[str, object], tuned: tuple[Path, Tuning], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        tune(settings, OVER, out=tmp_path, trials=8, told=stop_at(3))
    monkeypatch.setattr("pflego.tuning._Watch.on_round", stop_in_a_trial)
    with pytest.raises(KeyboardInterrupt):
        tune(settings, OVER, out=tmp_path, trials=8)
    monkeypatch.undo()
    assert len(json.loads((tmp_path / "trials.json").read_text())["trials"]) == 3
    again = tune(settings, OVER, out=tmp_path, trials=8)
    assert timeless(again.attempts) == timeless(tuned[1].attempts[:8])


def test_a_damaged_file_is_refused_and_left_alone(settings: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "trials.json").write_text('{"made_of": {')
    with pytest.raises(pflego.FolderError, match="damaged or no search's, and was left as it is"):
        tune(settings, OVER, out=tmp_path)
    assert (tmp_path / "trials.json").read_text() == '{"made_of": {'


def test_a_search_goes_on_for_more_trials_but_not_for_other_ones(
    settings: dict[str, object], tuned: tuple[Path, Tuning], tmp_path: Path
) -> None:
    tune(settings, OVER, out=tmp_path, trials=2)
    longer = tune({**settings, "device": "auto"}, OVER, out=tmp_path, trials=3)
    assert timeless(longer.attempts) == timeless(tuned[1].attempts[:3])
    assert len(tune(settings, OVER, out=tmp_path, trials=1).attempts) == 3
    for other, over, reason in [
        ({"rounds": 7}, OVER, "rounds was 6, is now 7"),
        ({}, {**OVER, "steps": [2, 6]}, "steps was '2,5', is now '2,6'"),
        ({"data_seed": 9}, OVER, "data_seed was 'not set', is now 9; federation was"),
    ]:
        with pytest.raises(pflego.UserError, match=f"holds another search: .*{reason}"):
            tune({**settings, **other}, over, out=tmp_path, trials=3)


def test_settings_in_tables_are_the_same_search(
    settings: dict[str, object], tuned: tuple[Path, Tuning], tmp_path: Path
) -> None:
    tables: dict[str, object] = {**as_tables(settings)}
    tables["run"] = {**as_tables(settings)["run"], "out": str(tmp_path / "never"), "engine": "local"}
    tune(tables, OVER, out=tmp_path / "a", trials=2)
    again = tune(settings, OVER, out=tmp_path / "a", trials=3)
    assert timeless(again.attempts) == timeless(tuned[1].attempts[:3])
    assert not (tmp_path / "never").exists()


def test_the_best_is_a_settings_file_and_every_trial_is_in_a_table(tuned: tuple[Path, Tuning]) -> None:
    folder, tuning = tuned
    best = read_settings(folder / "best.toml")
    assert best.items() >= {**tuning.best.values, "rounds": 6, "algorithm": "pflego"}.items()
    assert tomllib.loads((folder / "best.toml").read_text())["run"]["rounds"] == 6
    Experiment.build(best)
    finished = [attempt for attempt in tuning.attempts if attempt.ended == "finished"]
    assert tuning.best.figure == max(attempt.figure or 0 for attempt in finished)
    assert tuning.ranked()[0] == tuning.best
    rows = json.loads((folder / "trials.json").read_text())["trials"]
    assert [row["values"] for row in rows] == [attempt.values for attempt in tuning.attempts]
    assert [[tuple(point) for point in row["curve"]] for row in rows] == [a.curve for a in tuning.attempts]
    with (folder / "trials.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [float(row["server_lr"]) for row in table] == [a.values["server_lr"] for a in tuning.attempts]
    assert [row["ended"] for row in table] == [attempt.ended for attempt in tuning.attempts]


def test_what_mattered_is_told_where_enough_trials_were_finished(
    settings: dict[str, object], tmp_path: Path
) -> None:
    over: dict[str, Space] = {"server_lr": Range(1e-5, 1e-1, log=True), "momentum": Range(0.1, 0.9)}
    assert tune({**settings, "rounds": 1}, over, out=tmp_path, trials=9).mattered == {}
    mattered = tune({**settings, "rounds": 1}, over, out=tmp_path, trials=12).mattered
    assert sum(mattered.values()) == pytest.approx(1)
    assert list(mattered) == ["server_lr", "momentum"]  # plain gradient descent has no momentum


def test_a_picture_shows_every_hyperparameter_and_the_rounds(
    tuned: tuple[Path, Tuning], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'pflego[plots]'")
    assert draw(tuned[1], tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    drawing = draw(tuned[1], tmp_path / "a.svg").read_text()
    assert all(f"<!-- {name}" in drawing for name in (*OVER, "as they trained", "validation accuracy, %"))


def test_a_trial_that_diverges_is_given_up_and_is_not_the_best(
    settings: dict[str, object], tmp_path: Path
) -> None:
    over: dict[str, Space] = {"client_lr": [1e38, 0.01]}
    tuning = tune({**settings, "algorithm": "fedavg", "steps": 3}, over, out=tmp_path, trials=4)
    ended = {str(attempt.values["client_lr"]): attempt.ended for attempt in tuning.attempts}
    assert ended == {"1e+38": "diverged", "0.01": "finished"}
    assert tuning.best.values == {"client_lr": 0.01}


def test_values_that_do_not_go_together_are_refused_one_by_one(
    settings: dict[str, object], tmp_path: Path
) -> None:
    over: dict[str, Space] = {"steps": [2, 9], "body_steps": [1, 5]}
    tuning = tune({**settings, "algorithm": "fedrep"}, over, out=tmp_path, trials=8)
    refused = [attempt for attempt in tuning.attempts if attempt.ended == "refused"]
    assert refused
    assert all(attempt.values == {"steps": 2, "body_steps": 5} for attempt in refused)
    assert "body_steps must be at most steps" in refused[0].reason


def test_where_no_trial_ends_the_reason_is_told(settings: dict[str, object], tmp_path: Path) -> None:
    over: dict[str, Space] = {"client_lr": [1e37, 1e38]}
    with pytest.raises(pflego.UserError, match="none of 2 trials came to an end: the last one diverged"):
        tune({**settings, "algorithm": "fedavg", "steps": 3}, over, out=tmp_path, trials=2)


def test_the_smallest_error_is_the_best(settings: dict[str, object], tmp_path: Path) -> None:
    data = write_data(tmp_path / "line.npz", regression=True)
    tuning = tune(
        {**settings, "data": data, "partition": "iid"}, {"server_lr": [1e-4, 10.0]}, out=tmp_path, trials=3
    )
    assert tuning.metric.name == "rmse"
    assert {attempt.values["server_lr"] for attempt in tuning.attempts} == {1e-4, 10.0}
    assert tuning.best.figure == min(attempt.figure or 0 for attempt in tuning.attempts)
    assert tuning.best.values == {"server_lr": 1e-4}


def test_what_was_made_in_python_is_tuned_too(tmp_path: Path) -> None:
    twin = world(dtype=torch.float32)
    over: dict[str, Space] = {"server_lr": [0.001, 0.01]}
    given = {"rounds": 2, "steps": 3, "device": "cpu"}
    tuning = tune(given, over, out=tmp_path, trials=2, federation=twin.federation, model=twin.model)
    assert "data" not in tuning.settings
    other = world(dtype=torch.float32, seed=1)
    with pytest.raises(pflego.UserError, match="holds another search: federation was"):
        tune(given, over, out=tmp_path, trials=2, federation=other.federation, model=twin.model)
    with pytest.raises(pflego.UserError, match="holds another search: model was"):
        tune(given, over, out=tmp_path, trials=2, federation=twin.federation, model=other.model)


def test_bad_requests_are_refused(
    settings: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(pflego.UserError, match="trials must be a whole number above 0"):
        tune(settings, OVER, out=tmp_path, trials=0)
    with pytest.raises(pflego.UserError, match="share held out must lie between 0 and 1"):
        tune(settings, OVER, out=tmp_path, hold_out=1.5)
    with pytest.raises(pflego.UserError, match=r"enough training samples to set a share of 0\.001 aside"):
        tune(settings, OVER, out=tmp_path, hold_out=0.001)
    with pytest.raises(pflego.UserError, match="say what to try"):
        tune(settings, {}, out=tmp_path)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(pflego.UserError, match=r"pip install 'pflego\[search\]'"):
        tune(settings, OVER, out=tmp_path)
