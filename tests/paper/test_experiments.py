"""The paper's experiments on a handful of invented images."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import pflego
from pflego.cli import app
from pflego.cli.paper import _EXPERIMENTS
from pflego.paper import PRESETS, cells, methods, preset, published, results
from pflego.paper.cells import Cell
from pflego.paper.experiments import EXPERIMENTS, Choice
from pflego.paper.search import client_bound, grid
from pflego.settings.experiment import Experiment
from pflego.settings.tables import Settings, read_settings


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Something like MNIST, but tiny."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    y = np.arange(4000) % 10
    x = (rng.random((4000, 4, 4)) * 100 + 15 * y[:, None, None]).astype(np.uint8)
    np.savez(folder / "mnist.npz", x_train=x[:3000], y_train=y[:3000], x_test=x[3000:], y_test=y[3000:])
    return str(folder)


def invoke(*words: str) -> str:
    result = CliRunner().invoke(app, ["paper", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_table_1_has_the_papers_84_cells_and_their_seeds() -> None:
    assert len(EXPERIMENTS["table1"].cells(Choice())) == 84
    assert len(EXPERIMENTS["table1"].cells(Choice(seeds=(1, 2, 3)))) == 3 * 84
    assert len(EXPERIMENTS["omniglot"].cells(Choice())) == 8
    chosen = EXPERIMENTS["table1"].cells(
        Choice(datasets=["mnist"], degrees=["high", "none"], methods=["pflego", "fedavg", "pflego-common"])
    )
    assert [(cell.preset, cell.method) for cell in chosen] == [
        (f"mnist-{degree}", method)
        for degree in ("high", "none")
        for method in ("pflego", "fedavg", "pflego-common")
    ]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_cell_of_every_experiment_has_settings_that_are_known(name: str) -> None:
    planned = EXPERIMENTS[name].cells(Choice())
    assert planned
    assert len({cell.name for cell in planned}) == len(planned)
    for cell in planned:
        Settings.of(cell.settings())


def test_the_figures_vary_what_the_paper_varies() -> None:
    tau = EXPERIMENTS["tau"].cells(Choice())
    assert {cell.method for cell in tau} == {"pflego", "fedrecon"}
    assert sorted({int(str(cell.settings()["steps"])) for cell in tau}) == [5, 10, 25, 50, 75, 100]
    assert {cell.settings()["participation"] for cell in tau} == {"between:4-28"}
    shares = EXPERIMENTS["participation"].cells(Choice())
    assert {cell.settings()["participation"] for cell in shares} == {20, 40, 60, 100}
    assert {cell.preset for cell in shares} == {"cifar10-high"}


def test_figure_8_has_the_papers_own_rates() -> None:
    shares = EXPERIMENTS["participation"].cells(Choice())
    assert {cell.settings()["client_lr"] for cell in shares} == {0.001}
    assert {cell.settings().get("server_lr") for cell in shares if cell.method == "pflego"} == {0.001}
    assert all("server_lr" not in cell.settings() for cell in shares if cell.method != "pflego")


@pytest.mark.parametrize("name", ["curves", "tau", "rates"])
def test_the_figures_on_omniglot_have_5000_rounds_unless_others_are_asked_for(name: str) -> None:
    long = [cell for cell in EXPERIMENTS[name].cells(Choice()) if cell.preset == "omniglot"]
    assert {cell.settings()["rounds"] for cell in long} == {5000}
    short = [c for c in EXPERIMENTS[name].cells(Choice(changes={"rounds": 7})) if c.preset == "omniglot"]
    assert {cell.settings()["rounds"] for cell in short} == {7}
    if name == "curves":
        assert {cell.method for cell in long} == set(published().accuracy["omniglot"])
        assert len({cell.method for cell in long}) == 8
        assert all(cell.settings()["evaluate_training"] for cell in long)  # the middle panel of figure 6


def test_the_search_can_reach_what_was_published() -> None:
    for name in PRESETS:
        for method in methods(name):
            best, tried = preset(name, method), grid(name, method)
            missed = {key: best[key] for key in tried if best[key] not in tried[key]}
            assert missed == {}, (name, method)


def test_accuracy_over_clients_and_the_deviation_over_rounds_stand_apart(
    data_dir: str, tmp_path: Path
) -> None:
    words = ["--datasets", "mnist", "--degrees", "high", "--methods", "pflego", "--rounds", "3"]
    invoke("table1", *words, "--data-dir", data_dir, "--out", str(tmp_path))
    [path] = tmp_path.glob("mnist-high/pflego*.json")
    kept = json.loads(path.read_text())
    clients = (tmp_path / "mnist-high" / path.stem / "checkpoint" / "clients.jsonl").read_text().splitlines()
    figures = next(value for value in json.loads(clients[-1]).values() if isinstance(value, list))
    assert kept["client_mean"] == pytest.approx(100 * np.mean([f for f in figures if f is not None]))
    participants = [100 * value for _, value in kept["curves"]["participants"]]
    assert kept["deviation"] == pytest.approx(np.std(participants))
    record = cells.Record.read(path)
    shown = EXPERIMENTS["table1"].table([record], "table")
    texts = {str(column.header): next(iter(column.cells)) for column in shown.columns}
    assert "±" not in str(texts["participants, %"])
    assert texts["s.d. over rounds"] == f"{np.std(participants):.2f}"


def test_the_help_knows_the_experiments_without_loading_them() -> None:
    assert list(_EXPERIMENTS) == list(EXPERIMENTS)


def test_cells_are_run_kept_and_read_again(
    data_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["table1", "--datasets", "mnist", "--degrees", "high", "--rounds", "2", "--data-dir", data_dir]
    words += ["--out", str(tmp_path)]
    first = invoke(*words, "--methods", "pflego,fedavg")
    assert "98.70 ± 0.21" in first
    assert "1 of 2: mnist-high/pflego,rounds=2,seed=1" in first
    [path] = tmp_path.glob("mnist-high/pflego*.json")
    kept = json.loads(path.read_text())
    assert kept["settings"]["client_lr"] == 0.189
    assert kept["made"].keys() == {"pflego", "torch", "python", "machine"}
    assert len(kept["curves"]["participants"]) == 2
    history = [100 * value for _, value in kept["curves"]["participants"]]
    assert kept["participants"] == pytest.approx(np.mean(history))
    monkeypatch.setattr(
        "pflego.settings.experiment.Experiment.build", lambda *_, **__: pytest.fail("trained again")
    )
    assert "98.70 ± 0.21" in invoke(*words, "--methods", "pflego,fedavg")


def test_curves_are_drawn_and_a_page_is_written(data_dir: str, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    words = [
        "--datasets",
        "mnist",
        "--degrees",
        "high,none",
        "--rounds",
        "2",
        "--data-dir",
        data_dir,
        "--out",
        str(runs),
    ]
    invoke("curves", *words, "--methods", "pflego,pflego-auto,fedper")
    assert (runs / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "6 results" in invoke("results", str(runs), "--out", str(tmp_path / "results.md"))
    page = (tmp_path / "results.md").read_text()
    assert "## mnist" in page
    assert "(98.70 ± 0.21); T = 2 |" in page
    assert "**" not in page  # what was reduced is not compared
    assert "a part of the set, 3,000 of 60,000" in page
    assert "88 of the paper's 92 cells" in page
    for picture in ("results-curves.png", "results-passes.png"):
        assert f"]({picture})" in page
        assert (tmp_path / picture).exists()
    assert len(json.loads((tmp_path / "results.json").read_text())) == 6
    [record] = [r for r in results.read(runs) if (r.preset, r.method) == ("mnist-high", "pflego")]
    for start, said in (("zeros", True), ("centred", False)):
        common = replace(record, method="pflego-common", settings={**record.settings, "head_init": start})
        page = results.page([record, common], tmp_path / "some.md")
        assert ("On mnist the common head started at zero" in page) == said


def test_a_point_of_a_curve_is_the_mean_of_ten_rounds_and_not_of_ten_points(
    data_dir: str, tmp_path: Path
) -> None:
    cell = Cell("mnist-high", "pflego", seed=1, changes={"rounds": 2})
    record = cells.run(cell, tmp_path, means={"data_dir": data_dir}, with_cost=False, progress=False)
    every = [(t, float(t)) for t in range(1, 41)]
    for name, curve in (("every", every), ("tenth", every[9::10])):
        folder = tmp_path / name / "mnist-high"
        folder.mkdir(parents=True)
        curves = {**record.curves, "participants": curve}
        (folder / "run.json").write_text(json.dumps(asdict(replace(record, curves=curves))))
        results.write(folder.parent, tmp_path / f"{name}.md")
    of_every, of_tenth = (
        json.loads((tmp_path / f"{name}.json").read_text())[0]["curves"]["participants"]
        for name in ("every", "tenth")
    )
    assert of_every == [[10, 5.5], [20, 15.5], [30, 25.5], [40, 35.5]]
    assert of_tenth == [[10, 10], [20, 20], [30, 30], [40, 40]]


@pytest.mark.thorough
def test_seconds_a_round_stand_beside_the_papers_with_passes_and_operations(tmp_path: Path) -> None:
    drawings = np.arange(50 * 2 * 4)  # 50 alphabets of 2 characters, drawn 4 times
    np.savez(
        tmp_path / "omniglot.npz",
        images=np.random.default_rng(0).integers(256, size=(len(drawings), 105, 14)).astype(np.uint8),
        alphabet=(drawings // 8).astype(np.uint8),
        character=(drawings // 4).astype(np.int16),
        alphabet_names=np.array([f"alphabet {number}" for number in range(50)]),
    )
    words = ["--methods", "pflego,fedper", "--rounds", "1", "--data-dir", str(tmp_path)]
    shown = invoke("time", *words, "--scale", "0.04", "--out", str(tmp_path / "runs"))
    paper = published().seconds["omniglot"]
    passes = {"pflego": "1 + 1", "fedper": "50 + 50"}
    assert invoke("results", str(tmp_path / "runs"), "--out", str(tmp_path / "results.md"))
    page = (tmp_path / "results.md").read_text()
    assert "## Seconds per round" in page
    for method, count in passes.items():
        [line] = [line for line in shown.splitlines() if f" {method} " in line]
        assert f"{paper[method]:g}" in line
        assert count in line
        [line] = [line for line in page.splitlines() if line.startswith(f"| {method} |") and count in line]
        assert f"| {paper[method]} |" in line


def test_a_smaller_federation_has_fewer_clients_of_the_same_size(data_dir: str) -> None:
    cell = Cell("mnist-high", "pflego", 1, {"rounds": 1}, scale=0.1)
    settings = {**cell.settings(), "data_dir": data_dir}
    few = cells._federation(settings, 0.1)
    whole = cells._federation(settings, 1.0)
    assert len(few) == 10
    assert settings["participation"] == 2
    assert list(few.sizes) == list(whole.sizes[:10])
    with pytest.raises(pflego.UserError, match="scale must be above 0"):
        cells._federation(settings, 1.5)


def test_unknown_names_are_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(pflego.UserError, match="did you mean 'fedavg'"):
        invoke("table1", "--methods", "fedavgg", "--out", str(tmp_path))
    with pytest.raises(pflego.UserError, match="pflego paper tau has none of these: leave out --datasets"):
        invoke("tau", "--datasets", "mnist", "--out", str(tmp_path))
    with pytest.raises(pflego.UserError, match="has no results"):
        invoke("results", str(tmp_path), "--out", str(tmp_path / "r.md"))
    (tmp_path / "mnist-high").mkdir()
    (tmp_path / "mnist-high" / "pflego,seed=1.json").write_text('{"preset": "mnist-high"}')
    with pytest.raises(pflego.UserError, match="no result of this version of pflego: remove it"):
        invoke("results", str(tmp_path), "--out", str(tmp_path / "r.md"))


def test_settings_are_shown_as_a_settings_file(tmp_path: Path) -> None:
    text = invoke("settings", "mnist-high")
    assert "client_lr = 0.189" in text
    (tmp_path / "s.toml").write_text(text)
    assert read_settings(tmp_path / "s.toml")["algorithm"] == "pflego"
    table = invoke("settings")
    assert "0.189 (0.003)" in table
    assert "fashion-mnist-none" in table


def test_a_preset_can_be_run(data_dir: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["run", "--preset", "mnist-high", "--rounds", "1", "--data-dir", data_dir, "--out", str(out)]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0
    settings = (out / "settings.toml").read_text()
    assert "client_lr = 0.189" in settings
    assert 'head_init = "uniform"' in settings
    assert "rounds = 1\n" in settings


def test_the_search_goes_on_and_does_not_look_at_the_test_data(data_dir: str, tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed: pip install 'pflego[search]'")
    words = [
        "search",
        "--preset",
        "mnist-high",
        "--rounds",
        "1",
        "--data-dir",
        data_dir,
        "--out",
        str(tmp_path),
    ]
    assert "client_lr auto" in invoke(*words, "--trials", "3")
    output = invoke(*words, "--trials", "5", "--methods", "pflego")
    assert "client_lr 0.189" in output  # the published one
    first, second = (
        json.loads(next((tmp_path / "search" / "mnist-high").glob(f"*,{name}.json")).read_text())
        for name in ("server_lr", "client_lr")
    )
    assert [len(first["trials"]), len(second["trials"])] == [3, 2]
    assert sorted(trial["values"]["server_lr"] for trial in first["trials"]) == [0.001, 0.002, 0.003]
    best = max(first["trials"], key=lambda trial: trial["figure"])["values"]["server_lr"]
    assert second["made_of"]["beside"] == {"client_lr": "auto", "server_lr": best}
    tried = second["made_of"]["grid"]["client_lr"]
    assert {*grid("mnist-high", "pflego")["client_lr"]} < {*tried}


def test_the_bound_that_a_client_rate_is_searched_below_is_two_over_the_largest_constant(
    data_dir: str,
) -> None:
    """L_i = lambda_max(Phi^T Phi / N) / 2 of the softmax, a column of ones included."""
    settings = {**preset("mnist-high", "pflego"), "data_dir": data_dir, "clients": 20, "participation": 5}
    experiment = Experiment.build(settings)
    constants = []
    for client in experiment.federation:
        with torch.no_grad():
            phi = experiment.model.backbone(client.x_train.float() / 255).double().numpy()
        phi = np.hstack([phi, np.ones((len(phi), 1))])
        constants.append(np.linalg.eigvalsh(phi.T @ phi / len(phi))[-1] / 2)
    assert client_bound(experiment) == pytest.approx(2 / max(constants), rel=1e-3)
