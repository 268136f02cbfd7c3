from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

import pflego
from pflego.algorithms.registry import methods
from pflego.cli import app
from pflego.comparison.compare import choose, settings_for

SMALL = ["--clients", "5", "--rounds", "3", "--steps", "6", "--participation", "2", "--evaluate-every", "1"]


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, ["compare", *words], catch_exceptions=False, env={"COLUMNS": "120"})


def test_all_methods_meet_the_same_federation_and_cohorts(tmp_path: Path) -> None:
    result = invoke("--algorithms", "all", *SMALL, "--out", str(tmp_path))
    assert result.exit_code == 0
    entries = json.loads((tmp_path / "comparison.json").read_text())
    assert [entry["algorithm"] for entry in entries] == list(methods())
    assert all(name in result.output for name in methods())
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")
    settings = [(tmp_path / name / "seed-0" / "settings.toml").read_text() for name in methods()]
    federations = {line for text in settings for line in text.splitlines() if line.startswith("federation =")}
    assert len(federations) == 1
    costs = {entry["algorithm"]: entry["cost"] for entry in entries}
    passes = {name: (cost["forward_passes"], cost["backward_passes"]) for name, cost in costs.items()}
    assert costs["pflego"]["flops"] < costs["fedavg"]["flops"] < costs["ditto"]["flops"]
    assert "GFLOP a joule" in result.output
    assert passes["pflego"] == (1, 1)
    assert passes["fedavg"] == (6, 6)
    assert passes["ditto"] == (12, 12)


def test_several_seeds_give_mean_and_spread_and_the_same_command_goes_on(tmp_path: Path) -> None:
    words = ["--algorithms", "pflego,local", *SMALL, "--seeds", "2", "--seed", "5", "--out", str(tmp_path)]
    first = invoke(*words)
    assert "±" in first.output

    def figures() -> list[dict[str, object]]:
        entries: list[dict[str, object]] = json.loads((tmp_path / "comparison.json").read_text())
        return [{key: value for key, value in entry.items() if key != "cost"} for entry in entries]

    before = figures()
    assert [entry["seed"] for entry in before] == [5, 5, 6, 6]
    times = [path.stat().st_mtime_ns for path in sorted(tmp_path.glob("*/*/metrics.jsonl"))]
    assert len(times) == 4
    assert invoke(*words).exit_code == 0
    assert figures() == before


def test_a_setting_goes_to_the_methods_that_have_it(tmp_path: Path) -> None:
    given = {"rounds": 5, "mu": 0.5, "server_lr": 0.1, "fedprox": {"mu": 0.7}, "pflego": {"steps": 9}}
    names = ("pflego", "fedprox", "ditto", "fedavg")
    made = {name: settings_for(name, given, 3, tmp_path).flat for name in names}
    assert made["fedprox"]["mu"] == 0.7
    assert made["ditto"]["mu"] == 0.5
    assert "mu" not in made["pflego"]
    assert "mu" not in made["fedavg"]
    assert made["pflego"]["server_lr"] == 0.1
    assert "server_lr" not in made["ditto"]
    assert made["pflego"]["steps"] == 9
    assert all(settings["seed"] == 3 and settings["rounds"] == 5 for settings in made.values())


def test_wrong_names_are_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(pflego.UserError, match="did you mean 'fedavg'"):
        choose("pflego,fedavgg")
    (tmp_path / "s.toml").write_text("[pflego]\nstepps = 3\n")
    with pytest.raises(pflego.UserError, match="did you mean 'steps'"):
        invoke(
            str(tmp_path / "s.toml"), "--algorithms", "local,pflego", *SMALL, "--out", str(tmp_path / "out")
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("method", [pflego.Ditto(steps=2), pflego.PFLEGO(steps=2)], ids=["ditto", "pflego"])
def test_states_on_disk_change_nothing(tmp_path: Path, method: pflego.Algorithm) -> None:
    federation = pflego.load("digits", clients=6)
    model = pflego.models.build("mlp", (64,))
    options = {"rounds": 5, "participation": 2, "evaluate_every": 2}
    memory = pflego.train(federation, model, method, **options)  # type: ignore[arg-type]
    pflego.train(federation, model, method, out=tmp_path, states="disk", **{**options, "rounds": 3})  # type: ignore[arg-type]
    disk = pflego.train(federation, model, method, out=tmp_path, states="disk", resume=True, **options)  # type: ignore[arg-type]
    assert disk.states._held == {}  # type: ignore[attr-defined]
    for client in federation.ids:
        for name, tensor in memory.states[client].items():
            assert (disk.states[client][name] == tensor).all()
    with pytest.raises(pflego.UserError, match="needs a folder"):
        pflego.train(federation, model, method, states="disk", **options)  # type: ignore[arg-type]


def test_several_processes_that_know_nothing_of_each_other_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(pflego.UserError, match="torchrun has started 2 processes: a comparison is one"):
        invoke("--algorithms", "pflego", *SMALL, "--out", str(tmp_path))
    assert not list(tmp_path.iterdir())
