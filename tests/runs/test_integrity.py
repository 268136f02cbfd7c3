"""What was lost, exchanged or edited in a run's folder is noticed, and what is whole can still be used."""

from __future__ import annotations

import re
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

import pflego
from pflego.runs.folder import HistoryWarning, RunFolder
from pflego.runs.history import HistoryFile, HistoryRow
from pflego.runs.run import Run
from pflego.runs.state_files import StateFiles
from tests.support.reference import World, assert_identical, world

ALGORITHM = pflego.PFLEGO(steps=4, head_init="uniform")


def train(twin: World, out: Path | None, *, rounds: int = 6, **options: Any) -> Run:
    chosen = {"participation": 2, "seed": 5, "evaluate_every": 3, **options}
    return pflego.train(twin.federation, twin.model, ALGORITHM, rounds=rounds, out=out, **chosen)


def opened(twin: World, folder: Path) -> Run:
    return pflego.open_run(folder, federation=twin.federation, model=twin.model, algorithm=ALGORITHM)


def states_of(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoint" / "states").iterdir())


def test_a_lost_file_of_states_is_noticed(tmp_path: Path) -> None:
    twin = world()
    train(twin, tmp_path)
    for file in states_of(tmp_path):
        content = file.read_bytes()
        file.unlink()
        with pytest.raises(pflego.FolderError, match="missing"):
            opened(twin, tmp_path)
        with pytest.raises(pflego.FolderError, match="missing"):
            train(twin, tmp_path, rounds=8, resume=True)
        file.write_bytes(content)
    opened(twin, tmp_path)


@pytest.mark.parametrize("keep", [1, 2])
def test_a_lost_checkpoint_is_noticed(tmp_path: Path, keep: int) -> None:
    twin = world()
    run = train(twin, tmp_path, keep=keep)
    server = tmp_path / "checkpoint" / "server.safetensors"
    content = server.read_bytes()
    server.unlink()
    with pytest.raises(pflego.FolderError, match=r"is gone.*--back-to 6" if keep == 2 else "is gone"):
        train(twin, tmp_path, resume=True)
    server.write_bytes(content)
    assert_identical(train(twin, tmp_path, resume=True), run)


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    class KilledError(Exception):
        pass

    class Killer(pflego.Callback):
        def on_round(self, run: Run, row: HistoryRow) -> None:
            if row["round"] == 3:
                raise KilledError

    twin = world()
    with pytest.raises(KilledError):
        train(twin, tmp_path, checkpoint_every=5, callbacks=[Killer()])
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3
    assert_identical(train(twin, tmp_path, checkpoint_every=5, resume=True), train(twin, None))


def test_states_of_another_run_are_noticed(tmp_path: Path) -> None:
    twin = world()
    train(twin, tmp_path / "a", participation=pflego.Everyone())
    train(twin, tmp_path / "b", participation=pflego.Everyone(), seed=6)
    (ours,), (theirs,) = states_of(tmp_path / "a"), states_of(tmp_path / "b")
    assert ours.name == theirs.name
    shutil.copy(theirs, ours)
    with pytest.raises(pflego.FolderError, match="not the file that the checkpoint was written with"):
        opened(twin, tmp_path / "a")
    with pytest.raises(pflego.FolderError):
        train(twin, tmp_path / "a", rounds=8, participation=pflego.Everyone(), resume=True)


@pytest.mark.parametrize(
    ("pattern", "edited"),
    [
        (r"^steps = 4$", "steps = 9"),
        (r"^seed = 5$", "seed = 6"),
        (r"^server_lr = .*$", "server_lr = 0.5"),
        (r"^participation = .*$", 'participation = "3"'),
    ],
)
def test_edited_settings_are_noticed(tmp_path: Path, pattern: str, edited: str) -> None:
    twin = world()
    train(twin, tmp_path)
    path = tmp_path / "settings.toml"
    text, count = re.subn(pattern, edited, path.read_text(), flags=re.MULTILINE)
    assert count == 1
    path.write_text(text)
    with pytest.raises(pflego.FolderError, match="changed since the checkpoint"):
        opened(twin, tmp_path)
    assert path.read_text() == text


def test_settings_that_may_change_may_be_edited(tmp_path: Path) -> None:
    twin = world(dtype=torch.float32)
    train(twin, tmp_path)
    path = tmp_path / "settings.toml"
    path.write_text(path.read_text().replace("checkpoint_every = 1", "checkpoint_every = 2"))
    assert_identical(train(twin, tmp_path, rounds=8, resume=True), train(twin, None, rounds=8))


def test_an_edited_schema_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "wards.csv").write_text(
        "ward,age,ill\n" + "".join(f"{'ab'[i % 2]},{i % 7},{i % 3 == 0}\n" for i in range(40))
    )
    data = pflego.load(tmp_path / "wards.csv", column="ward", label="ill")
    model = pflego.models.build("mlp", tuple(data[0].x_train.shape[1:]))
    pflego.train(data, model, ALGORITHM, rounds=2, out=tmp_path / "run")
    schema = tmp_path / "run" / "checkpoint" / "schema.json"
    schema.write_text(schema.read_text().replace("age", "sex"))
    with pytest.raises(pflego.FolderError, match=r"schema\.json"):
        pflego.open_run(tmp_path / "run", federation=data, model=model)


def test_what_is_whole_is_opened_without_a_history_that_is_not(tmp_path: Path) -> None:
    twin = world(dtype=torch.float32)
    run = train(twin, tmp_path)
    history = tmp_path / "metrics.jsonl"
    history.write_text(history.read_text().replace('"round": 2', '"round": 3'))
    with pytest.warns(HistoryWarning, match="without its history"):
        salvaged = opened(twin, tmp_path)
    assert salvaged.history == []
    assert salvaged.evaluate() == run.evaluate()
    with pytest.raises(pflego.FolderError, match=r"metrics\.jsonl is damaged"):
        train(twin, tmp_path, rounds=8, resume=True)


@pytest.mark.parametrize(
    "written",
    [
        '"round": "2"',
        '"round": true',
        '"round": 2.0',
        '"round": null',
        '"round": NaN',
        '"rnd": 2',
        '"round": 2,',
    ],
)
def test_a_line_of_no_round_is_named_and_nothing_is_lost(tmp_path: Path, written: str) -> None:
    twin = world(dtype=torch.float32)
    train(twin, tmp_path, keep=2)
    history = tmp_path / "metrics.jsonl"
    lines = history.read_text().replace('"round": 2,', f"{written},")
    history.write_text(lines)
    why = r"metrics\.jsonl is damaged and was left as it is: line 2 does not say which round it is of$"
    with pytest.raises(pflego.FolderError, match=why):
        train(twin, tmp_path, rounds=8, resume=True)
    folder = RunFolder(tmp_path)
    kept = folder.kept()
    with pytest.raises(pflego.FolderError, match=why):
        folder.go_back(kept[0])
    assert folder.kept() == kept
    assert re.search(why, str(folder.check()["history"]))
    (tmp_path / "checkpoint" / "server.safetensors").unlink()
    with pytest.raises(pflego.FolderError):
        train(twin, tmp_path, rounds=8, resume=True)
    assert history.read_text() == lines
    with pytest.raises(pflego.FolderError, match=why):
        HistoryFile(history).rounds()


def test_what_stands_behind_the_checkpoints_lines_is_no_damage(tmp_path: Path) -> None:
    """A crash leaves half a line there; whatever it is, it is dropped when training goes on."""
    twin = world(dtype=torch.float32)
    train(twin, tmp_path)
    history = tmp_path / "metrics.jsonl"
    whole = history.read_bytes()
    for more in (b'{"round": 7, "lo', b'{"round": "7"}\n', b"\n"):
        history.write_bytes(whole + more)
        assert len(opened(twin, tmp_path).history) == 6
    train(twin, tmp_path, rounds=7, resume=True)
    assert len(opened(twin, tmp_path).history) == 7


def test_checking_names_what_is_not_whole(tmp_path: Path) -> None:
    twin = world()
    train(twin, tmp_path)
    folder = RunFolder(tmp_path)
    assert set(folder.check().values()) == {None}
    states_of(tmp_path)[0].unlink()
    (tmp_path / "metrics.jsonl").write_text("")
    wrong = {part for part, problem in folder.check().items() if problem is not None}
    assert wrong == {"states", "history"}
    (tmp_path / "checkpoint" / "server.safetensors").write_bytes(b"nothing")
    assert folder.check()["checkpoint"] is not None


def test_drafts_of_killed_processes_are_tidied_by_who_trains_next(tmp_path: Path) -> None:
    twin = world()
    train(twin, tmp_path)
    drafts = [
        tmp_path / ".settings.toml.77.part",
        tmp_path / "checkpoint" / "states" / ".x.safetensors.0a.part",
    ]
    for draft in drafts:
        draft.write_bytes(b"half")
    opened(twin, tmp_path)
    assert all(draft.exists() for draft in drafts)  # who only reads changes nothing
    train(twin, tmp_path, rounds=7, resume=True)
    assert not any(draft.exists() for draft in drafts)


def test_nobody_else_can_read_checkpoints_and_states(tmp_path: Path) -> None:
    twin = world()
    train(twin, tmp_path)
    checkpoint = tmp_path / "checkpoint"

    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    assert [mode(folder) for folder in (checkpoint, checkpoint / "states")] == [0o700, 0o700]
    assert {mode(path) for path in (checkpoint / "server.safetensors", *states_of(tmp_path))} == {0o600}


def test_stale_states_are_written_anew_and_nothing_is_lost(tmp_path: Path) -> None:
    clients = [
        pflego.Client(
            i, torch.randn(4, 3), torch.tensor([0, 1, 0, 1]), torch.randn(2, 3), torch.tensor([0, 1])
        )
        for i in range(60)
    ]
    federation = pflego.Federation(clients)
    model = pflego.Model(torch.nn.Linear(3, 4), features=4)
    run = pflego.train(
        federation, model, ALGORITHM, rounds=150, participation=6, evaluate_every=None, out=tmp_path, seed=1
    )
    again = pflego.open_run(tmp_path, federation=federation, model=model)
    assert all(torch.equal(again.states[i]["head"], run.states[i]["head"]) for i in range(60))
    visited = {client for number in range(1, 151) for client in run.participants(number)}
    state = run.states[0]["head"].nbytes
    files = StateFiles(tmp_path / "checkpoint" / "states").files()
    assert len(files) <= 20
    header = 200  # bytes that a tensor's name, type and shape take in a file
    assert sum(path.stat().st_size for path in files) <= 3 * len(visited) * (state + header)


def test_the_last_checkpoints_are_kept_and_can_be_gone_back_to(tmp_path: Path) -> None:
    twin = world(dtype=torch.float32)
    run = train(twin, tmp_path, rounds=9, keep=3, evaluate_every=1)
    folder = RunFolder(tmp_path)
    assert folder.kept() == [7, 8, 9]
    assert set(folder.check().values()) == {None}
    with pytest.raises(pflego.FolderError, match="kept are: 7, 8, 9"):
        folder.go_back(5)
    folder.go_back(7)
    assert folder.kept() == [7]
    back = opened(twin, tmp_path)
    assert [row["round"] for row in back.history] == list(range(1, 8))
    assert_identical(back, train(twin, None, rounds=7, evaluate_every=1))
    assert_identical(train(twin, tmp_path, rounds=9, keep=1, evaluate_every=1, resume=True), run)
    assert folder.kept() == []
