from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pflego
from pflego.report import alone
from pflego.report.alone import Alone, learn_alone
from pflego.report.presence import who_took_part
from tests.support.cases import often
from tests.support.reported import run


def learnt(trained: pflego.Run, wanted: bool | None = True) -> Alone:
    visits, _ = who_took_part(trained)
    return learn_alone(trained, range(len(trained.federation)), visits, wanted=wanted)


@pytest.mark.parametrize("regression", often([False, True]), ids=["classes", "regression"])
@pytest.mark.parametrize(
    "method",
    [
        pflego.PFLEGO(steps=4),
        pflego.PFLEGO(steps=4, common_head=True),
        pflego.FedAvg(steps=3, labels="global"),
    ],
    ids=["pflego", "common head", "fedavg"],
)
def test_alone_is_a_federation_of_one_for_as_many_rounds(method: pflego.Algorithm, regression: bool) -> None:
    together = run(method, regression=regression, rounds=7)
    metric = together.federation.task.metric
    visits, _ = who_took_part(together)
    assert visits is not None
    wanted = []
    for client, rounds in zip(together.federation, visits, strict=True):
        assert rounds > 0
        itself = pflego.train(pflego.Federation([client]), together.model, method, rounds=rounds)
        wanted.append(itself.evaluate()[0][metric])  # type: ignore[literal-required]
    assert learnt(together).figures == pytest.approx(wanted, rel=1e-5)


def test_fedavg_alone_is_learning_alone() -> None:
    same: dict[str, Any] = {"steps": 5, "client_lr": 0.05, "head_init": "zeros"}
    together = run(pflego.FedAvg(**same), rounds=8, participation=4)
    itself = run(pflego.Local(**same), rounds=8, participation=4)
    assert learnt(together).figures == [row["accuracy"] for row in itself.evaluate()]


def test_who_never_took_part_has_nothing_to_compare() -> None:
    together = run(rounds=1)
    figures = learnt(together).figures
    assert figures is not None
    absent = [id not in together.participants(1) for id in together.federation.ids]
    assert [figure is None for figure in figures] == absent


def test_in_a_run_of_learning_alone_there_is_nothing_to_compare() -> None:
    assert learnt(run(pflego.Local(steps=2))) == Alone(None, "In this run every client learns alone.")


def test_what_takes_long_must_be_asked_for() -> None:
    together = run()
    for row in together.history:
        row["seconds"] = 20.0
    together.history[0]["seconds"] = 500.0  # compiling
    refused = learnt(together, wanted=None)
    assert refused.figures is None
    assert "2.0 minutes: pflego report RUN --alone, or run.report(path, alone=True)" in refused.why_not
    assert learnt(together, wanted=True).figures is not None
    for row in together.history[1:]:
        row["seconds"] = 0.5
    assert learnt(together, wanted=None).figures is not None
    assert learnt(together, wanted=False).figures is None


def test_it_is_kept_in_the_run_s_folder_for_the_same_run_only(tmp_path: Path) -> None:
    together = run(out=tmp_path)
    first = learnt(together).figures
    file = tmp_path / "checkpoint" / "alone.json"
    kept = json.loads(file.read_text())
    assert kept["figures"] == first
    file.write_text(json.dumps({**kept, "figures": [0.25] * 4}))
    again = pflego.open_run(tmp_path, federation=together.federation, model=together.model)
    assert learnt(again).figures == [0.25] * 4
    together.history.pop()  # now it is another run
    assert learnt(together).figures != [0.25] * 4
    file.write_text("{")
    assert learnt(again).figures == first


def test_a_run_without_a_folder_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert learnt(run()).figures is not None
    assert list(tmp_path.iterdir()) == []


def test_it_says_on_the_page_what_it_is() -> None:
    assert "as many rounds as the client took part in" in alone.BASELINE
