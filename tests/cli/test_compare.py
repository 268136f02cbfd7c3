from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

import pflego
from pflego import paper
from pflego.algorithms.registry import methods
from pflego.cli import app
from pflego.comparison.compare import settings_for
from pflego.comparison.rates import choose_rate, of_the_paper
from pflego.comparison.variants import choose
from pflego.settings.tables import Settings, read_settings

SMALL = ["--clients", "5", "--rounds", "3", "--steps", "6", "--participation", "2", "--evaluate-every", "1"]


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, ["compare", *words], catch_exceptions=False, env={"COLUMNS": "120"})


@pytest.mark.parametrize(
    "algorithms", ["pflego,fedavg,ditto,local", pytest.param("all", marks=pytest.mark.thorough)]
)
def test_methods_meet_the_same_federation_and_cohorts(algorithms: str, tmp_path: Path) -> None:
    rates = ("--rates", "given", "--client-lr", "0.01")
    result = invoke("--algorithms", algorithms, *SMALL, *rates, "--out", str(tmp_path))
    assert result.exit_code == 0
    asked = list(methods()) if algorithms == "all" else algorithms.split(",")
    entries = json.loads((tmp_path / "comparison.json").read_text())
    assert [entry["algorithm"] for entry in entries] == asked
    assert all(name in result.output for name in asked)
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")
    settings = [(tmp_path / name / "seed-0" / "settings.toml").read_text() for name in asked]
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


def test_every_method_chooses_its_main_rate_by_the_same_search_unless_it_is_given(tmp_path: Path) -> None:
    words = ["--algorithms", "pflego,fedavg,local", "--clients", "5", "--rounds", "6", "--steps", "4"]
    (tmp_path / "s.toml").write_text("[local]\nclient_lr = 0.2\n")
    first = invoke(str(tmp_path / "s.toml"), *words, "--out", str(tmp_path / "out"))
    assert "chosen for pflego: server_lr" in first.output
    assert "passes of a client" in first.output
    assert "Ranked by everyone adapted" in " ".join(first.output.split())
    assert "chosen for local" not in first.output
    entries = {e["algorithm"]: e for e in json.loads((tmp_path / "out" / "comparison.json").read_text())}
    assert entries["local"]["rate"] is None
    for name, rate in [("pflego", "server_lr"), ("fedavg", "client_lr")]:
        chosen = entries[name]["rate"]
        figures = dict(chosen["tried"])
        assert (chosen["name"], chosen["rounds"]) == (rate, 5)
        assert figures[chosen["value"]] == max(figures.values())
        made = read_settings(tmp_path / "out" / name / "seed-0" / "settings.toml")
        assert made[rate] == chosen["value"]
        assert made["rounds"] == 6
    again = invoke(
        str(tmp_path / "s.toml"), *words, "--out", str(tmp_path / "out")
    )  # is read, not searched again
    kept = {e["algorithm"]: e for e in json.loads((tmp_path / "out" / "comparison.json").read_text())}
    assert again.exit_code == 0
    assert kept["fedavg"]["rate"] == entries["fedavg"]["rate"]


def test_a_search_looks_at_training_data_alone(tmp_path: Path) -> None:
    """With other test data the same rates get the same figures."""
    settings = settings_for("fedavg", {"rounds": 4, "steps": 3, "clients": 5}, 0, tmp_path)
    whole = pflego.load("digits", clients=5)
    blind = pflego.Federation(
        [pflego.Client(c.id, c.x_train, c.y_train, c.x_test[:1] * 0, c.y_test[:1]) for c in whole]
    )
    found = [choose_rate(settings, {}, fed, tmp_path / str(k)) for k, fed in enumerate((whole, blind))]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].tried == found[1].tried


def test_the_papers_rates_are_those_of_its_experiment_with_the_same_data(tmp_path: Path) -> None:
    given = {"data": "mnist", "classes_per_client": 2}
    found = {
        name: of_the_paper(settings_for(name, given, 0, tmp_path)) for name in ("fedprox", "pflego", "local")
    }
    assert found["fedprox"] | {"client_lr": 0.007, "mu": 0.25, "labels": "local"} == found["fedprox"]
    assert found["pflego"]["server_lr"] == 0.003
    assert found["local"] == {}
    with pytest.raises(pflego.SettingError, match="no experiment"):
        of_the_paper(settings_for("fedavg", {"data": "digits"}, 0, tmp_path))
    with pytest.raises(pflego.SettingError, match="rates"):
        invoke("--algorithms", "pflego", *SMALL, "--rates", "best", "--out", str(tmp_path))


def test_a_presets_rates_are_the_papers_and_not_the_defaults() -> None:
    algorithm = Settings.of(paper.preset("mnist-high", "fedavg")).algorithm
    assert algorithm.settings() | {
        "client_lr": 0.007,
        "head_init": "uniform",
        "labels": "local",
        "steps": 50,
    } == (algorithm.settings())


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
