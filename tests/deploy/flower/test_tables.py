"""Sites with tables of their own, read by a schema that all have."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import pflego
from pflego.data.schema import Schema
from pflego.deploy.folder import write_app
from pflego.deploy.own_model import own_run
from tests.support.grid import Node
from tests.support.sites import CONFIG, train

NAMES = ["hill", "lake", "moor"]
PRICE = 250_000.0  # what the prices of houses scatter by, about


@pytest.fixture
def nodes(tmp_path: Path) -> dict[int, Node]:
    """Three sites with the prices of houses."""
    rng = np.random.default_rng(0)
    tables = {}
    for name in NAMES:
        rooms, age = rng.uniform(1, 9, 40), rng.uniform(0, 90, 40)
        price = PRICE * (2 + 0.5 * rooms - 0.01 * age + 0.1 * rng.normal(size=40))
        tables[name] = [f"{r:.2f},{a:.1f},{p:.0f}" for r, a, p in zip(rooms, age, price, strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["rooms,age,price", *tables[name]]) + "\n")
    everything = [f"{name},{row}" for name, rows in tables.items() for row in rows]
    (tmp_path / "all.csv").write_text("\n".join(["client,rooms,age,price", *everything]) + "\n")
    schema = pflego.load(tmp_path / "all.csv", label="price", column="client", task="regression").schema
    assert schema is not None
    (tmp_path / "schema.json").write_text(schema.to_json())
    return {
        position: Node(
            {
                "client-id": name,
                "data": str(tmp_path / f"{name}.csv"),
                "schema": str(tmp_path / "schema.json"),
                "state": str(tmp_path / name),
                "device": "cpu",
            },
            key=name.encode(),
        )
        for position, name in enumerate(NAMES)
    }


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
        run = train(nodes, tmp_path / "server", rounds=2, wait=0.1, **{"min-clients": 3})
    assert run.history[1]["missing"] == 1
    assert "the federation reads its data by another schema: all sites need the same file" in caplog.text
