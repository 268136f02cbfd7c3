"""Sites with tables of their own, read by a schema that all have."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import pflego
from pflego.algorithms.registry import find_method
from pflego.data.schema import Schema
from pflego.deploy.folder import write_app
from pflego.deploy.inspection import inspect
from pflego.deploy.own_model import own_run
from tests.support.grid import Node
from tests.support.sites import CONFIG, PATIENCE, train

NAMES = ["hill", "lake", "moor"]
PRICE = 250_000.0  # what the prices of houses scatter by, about


@pytest.fixture
def nodes(tmp_path: Path) -> dict[int, Node]:
    """Three sites with the prices of houses."""
    return settled(tmp_path)


def settled(folder: Path, weight: str | None = None) -> dict[int, Node]:
    """Give three sites the prices of houses, and a column of weights that are larger at some of them."""
    rng = np.random.default_rng(0)
    head, tables = "rooms,age,price" + (f",{weight}" if weight else ""), {}
    for position, name in enumerate(NAMES):
        rooms, age = rng.uniform(1, 9, 40), rng.uniform(0, 90, 40)
        price = PRICE * (2 + 0.5 * rooms - 0.01 * age + 0.1 * rng.normal(size=40))
        tables[name] = [f"{r:.2f},{a:.1f},{p:.0f}" for r, a, p in zip(rooms, age, price, strict=True)]
        if weight:
            each = np.random.default_rng(position).uniform(0, 1 + position, 40)
            tables[name] = [f"{row},{s:.3f}" for row, s in zip(tables[name], each, strict=True)]
        (folder / f"{name}.csv").write_text("\n".join([head, *tables[name]]) + "\n")
    everything = [f"{name},{row}" for name, rows in tables.items() for row in rows]
    (folder / "all.csv").write_text("\n".join([f"client,{head}", *everything]) + "\n")
    schema = pflego.load(
        folder / "all.csv", label="price", column="client", task="regression", weight=weight
    ).schema
    assert schema is not None
    (folder / "schema.json").write_text(schema.to_json())
    return {
        position: Node(
            {
                "client-id": name,
                "data": str(folder / f"{name}.csv"),
                "schema": str(folder / "schema.json"),
                "state": str(folder / name),
                "device": "cpu",
            },
            key=name.encode(),
        )
        for position, name in enumerate(NAMES)
    }


@pytest.mark.parametrize("method", ["pflego", "fedavg"])
def test_sites_with_weights_train_as_in_one_process(method: str, tmp_path: Path) -> None:
    nodes = settled(tmp_path, "w")
    rate = {"client_lr": 0.1} if method == "fedavg" else {}
    run = train(
        nodes, tmp_path / "server", rounds=2, algorithm=method, **rate, **{"min-clients": 3, "max-share": 1.0}
    )
    federation = pflego.load(tmp_path / "all.csv", schema=tmp_path / "schema.json")
    assert federation.weighted
    np.testing.assert_allclose(run.federation.masses, federation.masses)
    theirs = pflego.train(
        federation,
        pflego.models.build("mlp", (2,), seed=5),
        find_method(method)(**{"steps": CONFIG["steps"], **rate}),
        rounds=2,
        seed=5,
        evaluate_every=2,
        device="cpu",
    )
    for name, tensor in theirs.shared.items():
        torch.testing.assert_close(run.shared[name], tensor, rtol=1e-5, atol=1e-6)
    for row, other in zip(run.history, theirs.history, strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-4)
    again = pflego.open_run(tmp_path / "server")
    np.testing.assert_allclose(again.federation.masses, federation.masses)


def test_one_sites_weights_count_for_no_more_than_its_share(tmp_path: Path) -> None:
    run = train(settled(tmp_path, "w"), tmp_path / "server", rounds=1, **{"min-clients": 3, "max-share": 0.4})
    masses = run.federation.masses
    assert masses.max() == pytest.approx(0.4 * masses.sum())


def test_weights_beyond_the_operators_limits_are_turned_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limits: dict[str, int | str] = {"min-clients": 2, "sample-limits": "moor: 40"}
    with caplog.at_level("WARNING", "flwr.pflego"):
        run = train(settled(tmp_path, "w"), tmp_path / "server", rounds=1, wait=PATIENCE, **limits)
    assert run.federation.ids == ["hill", "lake"]
    assert "sample_limits allows 40" in caplog.text


def test_weights_that_change_during_a_run_are_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = settled(tmp_path, "w")
    train(nodes, tmp_path / "server", rounds=1, **{"min-clients": 3})
    head, first, *rows = (tmp_path / "lake.csv").read_text().splitlines()
    changed = [f"{row.rpartition(',')[0]},5" for row in (first, *rows)]
    (tmp_path / "lake.csv").write_text("\n".join([head, *changed]) + "\n")
    with caplog.at_level("WARNING", "flwr.pflego"):
        run = train(nodes, tmp_path / "server", rounds=2, wait=PATIENCE, **{"min-clients": 3})
    assert run.history[1]["missing"] == 1
    assert "weights that sum to" in caplog.text


def test_a_site_shows_that_the_sum_of_its_weights_leaves_it(tmp_path: Path) -> None:
    nodes = settled(tmp_path, "w")
    write_app(tmp_path / "app", {**CONFIG, "min-clients": 3})
    words = " ".join(f'{name}="{value}"' for name, value in nodes[0].config.items())
    seen = inspect(tmp_path / "app", words)
    assert seen.once["mass"] == pytest.approx(
        pflego.load(tmp_path / "hill.csv", schema=tmp_path / "schema.json").masses[0]
    )
    assert "training weights" in [line.name for line in seen.data]
    plain = tmp_path / "plain"
    plain.mkdir()
    words = " ".join(f'{name}="{value}"' for name, value in settled(plain)[0].config.items())
    assert "mass" not in inspect(tmp_path / "app", words).once


def test_errors_are_in_the_unit_of_the_labels(nodes: dict[int, Node], tmp_path: Path) -> None:
    run = train(nodes, tmp_path / "server", **{"min-clients": 3})
    write_app(tmp_path / "app", {**CONFIG, "min-clients": 3})
    schema, squares, count = Schema.open(tmp_path / "schema.json"), 0.0, 0
    for node in nodes.values():
        own = own_run(tmp_path / "app", " ".join(f'{name}="{value}"' for name, value in node.config.items()))
        [client] = own.federation
        with torch.no_grad():
            answers = own.personal_model(client.id)(client.x_test).double().numpy()
        errors = (answers - client.y_test.double().numpy().reshape(-1, 1)) * schema.label_scale
        squares, count = squares + float((errors**2).sum()), count + len(errors)
    assert run.history[-1]["everyone_rmse"] == pytest.approx((squares / count) ** 0.5, rel=1e-5)
    assert 0.05 * PRICE < (squares / count) ** 0.5 < 2 * PRICE
    again = pflego.open_run(tmp_path / "server")
    assert again.federation.task == run.federation.task


def test_sites_with_another_schema_do_not_belong(
    nodes: dict[int, Node], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    schema = Schema.open(tmp_path / "schema.json")
    (tmp_path / "other.json").write_text(replace(schema, label_scale=schema.label_scale * 2).to_json())
    nodes[1].config = {**nodes[1].config, "schema": str(tmp_path / "other.json")}
    with caplog.at_level("WARNING", "flwr.pflego"):
        run = train(nodes, tmp_path / "server", rounds=1, **{"min-clients": 2})
    assert run.federation.ids == ["hill", "moor"]
    assert "clients 'lake' and 'hill' differ in the schema" in caplog.text


def test_a_schema_that_changes_during_a_run_is_noticed(
    nodes: dict[int, Node], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(nodes, tmp_path / "server", rounds=1, **{"min-clients": 3})
    schema = json.loads((tmp_path / "schema.json").read_text())
    (tmp_path / "other.json").write_text(json.dumps({**schema, "label_mean": 0.0}))
    nodes[1].config = {**nodes[1].config, "schema": str(tmp_path / "other.json")}
    with caplog.at_level("WARNING", "flwr.pflego"):
        run = train(nodes, tmp_path / "server", rounds=2, wait=PATIENCE, **{"min-clients": 3})
    assert run.history[1]["missing"] == 1
    assert "the federation reads its data by another schema: all sites need the same file" in caplog.text
