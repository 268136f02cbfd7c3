"""Clients that are left out, and come later as somebody new."""

from pathlib import Path

import numpy as np
import pytest
import torch

import pflego
from pflego import UserError
from pflego.data.left_out import left_out
from tests.data.sets.test_watch import write_packed


def same(one: pflego.Client, other: pflego.Client) -> bool:
    parts = ("x_train", "y_train", "x_test", "y_test")
    return all(torch.equal(getattr(one, part), getattr(other, part)) for part in parts)


def test_others_keep_their_samples_and_the_one_left_out_has_its_own() -> None:
    everybody = pflego.load("digits", clients=6, seed=3)
    some = pflego.load("digits", clients=6, seed=3, leave_out=["2", "5"])
    assert list(some.ids) == [0, 1, 3, 4]
    assert all(same(client, everybody.client(client.id)) for client in some)
    newcomer, _ = left_out(some, 5)
    assert same(newcomer, everybody.client(5))
    assert some.source["clients"] == 6


@pytest.mark.parametrize("names", [["7"], ["0", "1", "2"]])
def test_a_name_nobody_has_and_leaving_nobody_are_refused(names: list[str]) -> None:
    with pytest.raises(UserError, match=r"left out|must stay"):
        pflego.load("digits", clients=3, classes_per_client=4, leave_out=names)


def test_who_was_not_left_out_is_no_newcomer() -> None:
    with pytest.raises(UserError, match="was not left out"):
        left_out(pflego.load("digits", clients=3, classes_per_client=4), 1)


def test_nothing_of_a_table_is_learned_from_those_left_out() -> None:
    pytest.importorskip("pyarrow")
    some = pflego.load("heart", leave_out=["va"])
    assert some.schema is not None
    ages = np.concatenate([client.x_train[:, 0].double().numpy() for client in some])
    assert ages.mean() == pytest.approx(0, abs=1e-6)  # the mean of those who are there
    newcomer, schema = left_out(some, "va")
    assert schema == some.schema
    whole = pflego.load("heart").client("va")
    assert torch.equal(newcomer.y_test, whole.y_test)  # the same patients are for testing
    assert abs(float(newcomer.x_train[:, 0].mean())) > 0.2  # and older than others
    assert not torch.equal(newcomer.x_train, whole.x_train)


def test_a_folder_of_tables_can_do_without_a_file(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    for number, name in enumerate(["a", "b", "c"]):
        (tmp_path / f"{name}.csv").write_text(f"x,label\n{number},0\n{number},1\n")
    some = pflego.load(tmp_path, leave_out=["b"], test_share=0, scale=False)
    assert {client.id: sorted({*client.x_train.ravel().tolist()}) for client in some} == {"a": [0], "c": [2]}
    assert left_out(some, "b")[0].x_train.tolist() == [[1], [1]]


def test_a_run_lets_the_one_left_out_in_and_remembers_it(tmp_path: Path) -> None:
    folder = write_packed(tmp_path)
    federation = pflego.load("watch", data_dir=folder, window=8, column="side", leave_out=["1-1"])
    assert list(federation.ids) == ["2-0", "2-1"]
    model = pflego.models.build("watch-cnn", (8, 6))
    run = pflego.train(
        federation,
        model,
        pflego.PFLEGO(steps=3),
        rounds=2,
        participation=1,
        out=tmp_path / "run",
        progress=False,
    )
    newcomer, _ = left_out(federation, "1-1")
    joined = run.join(newcomer, alone=0)
    assert list(joined.run.federation.ids) == ["2-0", "2-1", "1-1"]
    again = pflego.open_run(tmp_path / "run")
    assert same(again.federation.client("1-1"), newcomer)
    assert torch.equal(again.states["1-1"]["head"], joined.run.states["1-1"]["head"])
