from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import pflego
from pflego import files
from pflego.codec import Decoded
from pflego.errors import FolderError
from pflego.runs import server_files
from pflego.runs.folder import RunFolder
from pflego.runs.history import HistoryFile, HistoryRow
from pflego.runs.run import Run
from tests.support.reference import World, assert_identical, timeless, world

ALGORITHM = pflego.PFLEGO(steps=4, head_init="uniform")


def train(twin: World, out: Path | None, *, rounds: int = 12, **options: object) -> Run:
    settings: dict[str, object] = {"participation": 2, "seed": 5, "evaluate_every": 4, **options}
    return pflego.train(twin.federation, twin.model, ALGORITHM, rounds=rounds, out=out, **settings)  # type: ignore[arg-type]


class StopAfter(pflego.Callback):
    def __init__(self, round: int) -> None:
        self.round = round

    def on_round(self, run: Run, row: HistoryRow) -> None:
        if row["round"] == self.round:
            raise KeyboardInterrupt


@pytest.mark.parametrize("checkpoint_every", [1, 3])
def test_an_interrupted_run_resumes_exactly(tmp_path: Path, checkpoint_every: int) -> None:
    twin = world(dtype=torch.float32)
    whole = train(twin, tmp_path / "whole")
    for stop in (1, 5, 8):
        with pytest.raises(KeyboardInterrupt):
            train(
                twin,
                tmp_path / "a",
                resume=stop > 1,
                callbacks=[StopAfter(stop)],
                checkpoint_every=checkpoint_every,
            )
    resumed = train(twin, tmp_path / "a", resume=True)
    assert_identical(resumed, whole)
    lines = (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == resumed.history


def test_a_finished_run_can_be_opened_again_and_goes_on_for_longer(tmp_path: Path) -> None:
    twin = world(dtype=torch.float32)
    first = train(twin, tmp_path, rounds=8)
    assert_identical(train(twin, tmp_path, rounds=8, resume=True), first)
    assert_identical(train(twin, tmp_path, rounds=12, resume=True), train(twin, None, rounds=12))
    with pytest.raises(pflego.UserError, match="already at round 12, past the 10 asked for"):
        train(twin, tmp_path, rounds=10, resume=True)


def test_only_needed_states_stay_on_disk(tmp_path: Path) -> None:
    twin = world()
    train(twin, tmp_path, participation=pflego.Everyone())
    assert [file.name for file in (tmp_path / "checkpoint" / "states").iterdir()] == ["00000012.safetensors"]


def test_an_existing_run_is_not_overwritten(tmp_path: Path) -> None:
    twin = world()
    train(twin, tmp_path, rounds=2)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(pflego.FolderError, match="already holds a run"):
        train(twin, tmp_path, rounds=2)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


class Meanwhile(pflego.Callback):
    """Somebody else tries to work in a run's folder after the third round."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work
        self.refused = 0

    def on_round(self, run: Run, row: HistoryRow) -> None:
        if row["round"] == 3:
            with (
                ThreadPoolExecutor(1) as elsewhere,
                pytest.raises(pflego.FolderError, match="another process is at work on the run in"),
            ):
                elsewhere.submit(self.work).result()
            self.refused += 1


@pytest.mark.slow
def test_nobody_else_can_work_on_a_run_meanwhile(tmp_path: Path) -> None:
    twin = world(dtype=torch.float32)
    other = world(dtype=torch.float32, seed=9).federation[0]
    newcomer = pflego.Client("newcomer", other.x_train, other.y_train, other.x_test, other.y_test)

    def join() -> None:
        opened = pflego.open_run(
            tmp_path / "a", federation=twin.federation, model=twin.model, algorithm=ALGORITHM
        )
        opened.join(newcomer, alone=0)

    goes_on = Meanwhile(lambda: train(twin, tmp_path / "a", resume=True))
    joins = Meanwhile(join)
    run = train(twin, tmp_path / "a", callbacks=[goes_on, joins])
    assert (goes_on.refused, joins.refused) == (1, 1)
    assert_identical(run, train(twin, None))
    assert_identical(train(twin, tmp_path / "a", resume=True), run)  # nobody holds it any more


def test_what_is_replaced_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = world()
    train(twin, tmp_path, rounds=4, participation=pflego.Everyone())
    read = files.read_checked
    times = 0

    def slowly(path: Path) -> Decoded:
        nonlocal times
        found, times = read(path), times + 1
        if times == 1:  # the server's side is read, and the states of round 4 give way to those of round 5
            train(twin, tmp_path, rounds=5, participation=pflego.Everyone(), resume=True)
        return found

    monkeypatch.setattr(server_files, "read_checked", slowly)
    found = RunFolder(tmp_path).load()
    assert found is not None
    assert found.round == 5
    assert found.states.keys() == {str(id) for id in twin.federation.ids}


def test_other_settings_are_refused_and_named(tmp_path: Path) -> None:
    twin = world()
    train(twin, tmp_path, rounds=2)
    with pytest.raises(pflego.UserError, match=r"participation was '2', is now '3'; seed was 5, is now 6"):
        train(twin, tmp_path, rounds=2, seed=6, participation=3, resume=True)
    other = world(seed=1)
    with pytest.raises(pflego.UserError, match=r"clients or their data are not the same.*starting weights"):
        train(other, tmp_path, rounds=2, resume=True)
    with pytest.raises(pflego.UserError, match="steps was 4, is now 5"):
        pflego.train(
            twin.federation, twin.model, pflego.PFLEGO(steps=5, head_init="uniform"), rounds=2,
            participation=2, seed=5, evaluate_every=4, out=tmp_path, resume=True,
        )  # fmt: skip


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


@pytest.mark.parametrize(
    "victim", ["checkpoint/server.safetensors", "checkpoint/states", "metrics.jsonl", "settings.toml"]
)
@pytest.mark.parametrize("damage", ["cut", "flip", "foreign"])
def test_a_damaged_run_is_refused_and_left_untouched(tmp_path: Path, victim: str, damage: str) -> None:
    twin = world()
    train(twin, tmp_path, rounds=6)
    path = tmp_path / victim
    if path.is_dir():
        path = min(path.iterdir())
    content = path.read_bytes()
    head, byte, tail = (
        content[: len(content) // 2],
        content[len(content) // 2],
        content[len(content) // 2 + 1 :],
    )
    path.write_bytes({"cut": head, "flip": head + bytes([byte ^ 1]) + tail, "foreign": b"hello"}[damage])
    before = snapshot(tmp_path)
    with pytest.raises(pflego.UserError):
        train(twin, tmp_path, rounds=6, resume=True)
    assert snapshot(tmp_path) == before


def test_a_safetensors_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    twin = world()
    train(twin, tmp_path, rounds=2)
    save_file({"w": torch.zeros(2)}, tmp_path / "checkpoint" / "server.safetensors")
    with pytest.raises(pflego.FolderError, match="not written by this version of pflego"):
        train(twin, tmp_path, rounds=2, resume=True)


def test_client_names_of_any_kind_survive(tmp_path: Path) -> None:
    twin = world()
    names: list[str | int] = ["a/b", "ü %2F", 7, "shared", ""]
    federation = pflego.Federation(
        [pflego.Client(name, c.x_train, c.y_train) for name, c in zip(names, twin.federation, strict=True)]
    )
    run = pflego.train(federation, twin.model, ALGORITHM, rounds=2, out=tmp_path)
    checkpoint = RunFolder(tmp_path).load()
    assert checkpoint is not None
    for name in names:
        assert torch.equal(checkpoint.states[str(name)]["head"], run.states[name]["head"])


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize("times", [2, pytest.param(8, marks=pytest.mark.thorough)])
def test_a_run_killed_at_random_moments_ends_as_if_it_never_was(tmp_path: Path, times: int) -> None:
    """SIGKILL a real process again and again, at moments drawn over its whole life, start-up included."""
    options = [
        "--clients",
        "8",
        "--participation",
        "3",
        "--rounds",
        "150",
        "--steps",
        "20",
        "--evaluate-every",
        "50",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def start(out: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "pflego", "run", *options, "--out", str(tmp_path / out), "--resume"]
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    assert start("whole").wait() == 0
    rng = random.Random(0)
    kills = 0
    while kills < times:
        process = start("killed")
        metrics = tmp_path / "killed" / "metrics.jsonl"
        if kills % 3:  # wait until it has done a round; else kill it while it starts
            known = size(metrics)
            while process.poll() is None and size(metrics) <= known:
                time.sleep(0.001)
            time.sleep(rng.uniform(0, 0.05))
        else:
            time.sleep(rng.uniform(0.3, 2))
        process.send_signal(signal.SIGKILL)
        if process.wait() == 0:
            break
        kills += 1
    assert kills >= min(times, 3)
    assert start("killed").wait() == 0
    whole, killed = (RunFolder(tmp_path / name).load() for name in ("whole", "killed"))
    assert whole is not None
    assert killed is not None
    assert timeless(whole.history) == timeless(killed.history)
    for part in ("shared", "server"):
        ours, theirs = getattr(killed, part), getattr(whole, part)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert killed.states.keys() == whole.states.keys()
    assert all(torch.equal(killed.states[id]["head"], whole.states[id]["head"]) for id in whole.states)


def test_a_full_disk_while_history_is_appended_is_said(tmp_path: Path) -> None:
    history = HistoryFile(Path("/dev/full"))
    with pytest.raises(FolderError, match="No space left"):
        history.append({"round": 1})


def test_a_folder_that_is_removed_while_states_are_on_disk_is_said(tmp_path: Path) -> None:
    class Remove(pflego.Callback):
        def on_round(self, run: Run, row: HistoryRow) -> None:
            if row["round"] == 3:
                shutil.rmtree(tmp_path / "run")

    with pytest.raises(FolderError):
        train(world(dtype=torch.float32), tmp_path / "run", states="disk", callbacks=[Remove()])
