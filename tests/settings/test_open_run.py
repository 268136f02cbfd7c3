from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import pflego
from pflego.federation.remote import NotHereError, RemoteFederation
from pflego.settings.experiment import Experiment
from tests.support.reference import assert_identical, world


def test_a_run_is_opened_from_its_settings(tmp_path: Path) -> None:
    given = {"clients": 5, "rounds": 6, "participation": "2", "evaluate_every": 2, "out": str(tmp_path / "a")}
    trained = Experiment.build(given).train()
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    opened = pflego.open_run(tmp_path / "a")
    assert_identical(opened, trained)
    assert opened.evaluate() == trained.evaluate()
    assert opened.evaluations == trained.evaluations
    assert list(opened.evaluations) == [2, 4, 6]
    assert before == {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}


def test_what_was_made_in_python_must_be_given(tmp_path: Path) -> None:
    twin = world(dtype=torch.float32)
    algorithm = pflego.PFLEGO(steps=3)
    trained = pflego.train(twin.federation, twin.model, algorithm, rounds=2, out=tmp_path)
    with pytest.raises(
        pflego.UserError, match=r"open the run there: pflego.open_run\(folder, federation=...\)"
    ):
        pflego.open_run(tmp_path)
    with pytest.raises(pflego.UserError, match=r"model=\.\.\."):
        pflego.open_run(tmp_path, federation=twin.federation)
    assert_identical(pflego.open_run(tmp_path, federation=twin.federation, model=twin.model), trained)
    with pytest.raises(pflego.FolderError, match="another federation"):
        pflego.open_run(tmp_path, federation=world(dtype=torch.float32, seed=9).federation, model=twin.model)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(pflego.FolderError, match="holds no run"):
        pflego.open_run(tmp_path)


def test_everybodys_figures_survive_an_interruption(tmp_path: Path) -> None:
    twin = world(dtype=torch.float32)

    class Stop(pflego.Callback):
        def on_round(self, run: pflego.Run, row: dict[str, float | int | None]) -> None:
            if row["round"] == 5:
                raise KeyboardInterrupt

    def train(out: Path, *, resume: bool = False, callbacks: Sequence[pflego.Callback] = ()) -> pflego.Run:
        return pflego.train(
            twin.federation,
            twin.model,
            pflego.PFLEGO(steps=3),
            rounds=8,
            evaluate_every=2,
            out=out,
            resume=resume,
            callbacks=callbacks,
            checkpoint_every=3,
        )

    whole = train(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "a", callbacks=[Stop()])
    resumed = train(tmp_path / "a", resume=True)
    assert resumed.evaluations == whole.evaluations
    assert (tmp_path / "a/checkpoint/clients.jsonl").read_bytes() == (
        tmp_path / "whole/checkpoint/clients.jsonl"
    ).read_bytes()


def test_who_took_part_is_known_afterwards() -> None:
    twin = world(dtype=torch.float32)
    run = pflego.train(twin.federation, twin.model, pflego.PFLEGO(steps=2), rounds=4, participation=2, seed=3)
    for number in range(1, 5):
        assert len(run.participants(number)) == 2
    never = set(twin.federation.ids) - {id for number in range(1, 5) for id in run.participants(number)}
    for id in twin.federation.ids:
        moved = bool(run.states[id]["head"].abs().sum() > 0)
        assert moved == (id not in never)


def test_data_elsewhere_are_not_looked_at() -> None:
    federation = RemoteFederation(["a", "b"], sizes=[3, 4], classes=[0, 1], outputs=2)
    assert federation.some_inputs(8) is None
    assert federation.outputs == 2
    assert federation.fingerprint()
    with pytest.raises(NotHereError, match="data of client 'a' are not on this machine"):
        federation.client("a")
