"""pflego attack: rules against liars, on the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from statistics import fmean

import pytest
from click.testing import Result
from typer.testing import CliRunner

import pflego
from pflego.cli import app
from pflego.comparison.attack import usual_rules
from pflego.exchange.aggregation import aggregation_of
from pflego.exchange.liars import liars_of

WORDS = (
    "--clients 8 --classes-per-client 10 --rounds 3 --steps 5 --participation 6 --share 0.25 "
    "--rules mean,median --lies sign:20,labels"
)


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, ["attack", *words], catch_exceptions=False, env={"COLUMNS": "120"})


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("attack")
    result = invoke(*WORDS.split(), "--seeds", "2", "--seed", "3", "--out", str(folder))
    assert result.exit_code == 0
    return folder, result.output


def test_every_rule_meets_every_lie_with_every_seed(attacked: tuple[Path, str]) -> None:
    folder, said = attacked
    trials = json.loads((folder / "attack.json").read_text())
    met = [(one["seed"], one["rule"], one["lie"]) for one in trials]
    assert met == [
        (s, r, lie) for s in (3, 4) for r in ("mean", "median") for lie in ("nobody", "sign:20", "labels")
    ]
    assert all(
        word in said for word in ("nobody lies", "sign:20", "labels", "median", "±", "25% of the clients lie")
    )
    rows = list(csv.DictReader((folder / "attack.csv").read_text().splitlines()))
    assert [float(row["mean"]) for row in rows] == [one["mean"] for one in trials]
    assert (folder / "attack.md").read_text().count("| rule | nobody lies | sign:20 | labels | worst |") == 2
    assert (folder / "attack.png").read_bytes().startswith(b"\x89PNG")
    assert r"\toprule" in (folder / "attack.tex").read_text()


def test_figures_are_those_of_honest_clients_after_their_local_steps(attacked: tuple[Path, str]) -> None:
    folder, _ = attacked
    liars = liars_of("sign:20@0.25")
    assert liars is not None
    for trial in json.loads((folder / "attack.json").read_text()):
        run = pflego.open_run(
            folder / trial["rule"] / trial["lie"].replace(":", "-") / f"seed-{trial['seed']}"
        )
        assert str(run.plan.liars) == ("None" if trial["lie"] == "nobody" else f"{trial['lie']}@0.25")
        assert run.plan.aggregation == aggregation_of(trial["rule"])
        who = liars.who(run.federation.ids, seed=trial["seed"])
        assert len(who) == 2
        honest = [row["accuracy"] for i, row in enumerate(run.evaluate(adapt=True)) if i not in who]
        known = [one for one in honest if one is not None]
        assert trial["mean"] == fmean(known)
        assert trial["worst_tenth"] == min(known)  # of six clients, one
        assert list(trial["figures"].values()) == honest


def test_the_median_keeps_what_the_mean_loses(attacked: tuple[Path, str]) -> None:
    folder, _ = attacked
    found = {
        (one["seed"], one["rule"], one["lie"]): one["mean"]
        for one in json.loads((folder / "attack.json").read_text())
    }
    for seed in (3, 4):
        assert found[seed, "median", "sign:20"] > found[seed, "mean", "sign:20"]
        assert found[seed, "mean", "labels"] == pytest.approx(found[seed, "mean", "nobody"], abs=0.02)


def test_the_same_command_goes_on_and_trains_nothing_again(attacked: tuple[Path, str]) -> None:
    folder, _ = attacked
    before = (folder / "attack.json").read_text()
    rounds = {
        path: path.read_text() for path in folder.glob("*/*/*/metrics.jsonl")
    }  # with the seconds they took
    assert len(rounds) == 12
    again = invoke(*WORDS.split(), "--seeds", "2", "--seed", "3", "--out", str(folder))
    assert again.exit_code == 0
    assert (folder / "attack.json").read_text() == before
    assert {path: path.read_text() for path in rounds} == rounds


def test_rules_are_made_for_the_share_and_the_cohort() -> None:
    for rule in usual_rules(0.3, 7.5):
        aggregation_of(rule)
    assert "krum:3/4" in usual_rules(0.3, 7.5)
    assert not any(rule.startswith("trimmed") for rule in usual_rules(0.6, 10))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rules", "mena"], "cannot read aggregation"),
        (["--lies", "fib"], "cannot read the lie"),
        (["--share", "1.5"], "share"),
        (["--seeds", "0"], "seeds"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(
    tmp_path: Path, words: list[str], said: str
) -> None:
    with pytest.raises(pflego.UserError, match=said):
        invoke("--clients", "5", *words, "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_file_that_says_the_rule_or_the_liars_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('aggregation = "median"\n')
    with pytest.raises(pflego.UserError, match="--rules and --lies"):
        invoke(str(tmp_path / "s.toml"), "--out", str(tmp_path / "out"))
