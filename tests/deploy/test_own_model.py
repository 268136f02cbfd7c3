"""A site's own model, made at the site of what it was sent and what it kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from flwr.app import Context, Message
from typer.testing import CliRunner

import pflego
from pflego.algorithms.registry import find_method
from pflego.cli import app
from pflego.deploy.flower.client import app as client_app
from pflego.deploy.folder import write_app
from pflego.deploy.own_model import own_run
from tests.support.cases import often
from tests.support.grid import Node
from tests.support.sites import CONFIG, NAMES, SHAPE, arrays, federation, sites, train

METHODS = ["pflego", "fedavg", "ditto"]  # whose model is shared and kept, shared alone, kept alone


def node_config(node: Node) -> str:
    return " ".join(f"{name}={json.dumps(value)}" for name, value in node.config.items())


def settings(method: str, **changed: object) -> dict[str, object]:
    return {**CONFIG, "algorithm": method, "participation": "3", **changed}


def in_one_process(method: str = "pflego", *, rounds: int, participation: int = len(NAMES)) -> pflego.Run:
    return pflego.train(
        federation(),
        pflego.models.build("mlp", SHAPE, seed=5),
        find_method(method)(steps=5),  # type: ignore[call-arg]
        rounds=rounds,
        participation=participation,
        seed=5,
        device="cpu",
    )


@pytest.mark.parametrize("method", often(METHODS, "pflego"))
def test_it_is_the_model_of_the_whole_federation_in_one_process(method: str, tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    train(nodes, tmp_path / "out", algorithm=method, participation="3")
    write_app(tmp_path / "app", settings(method))
    whole = in_one_process(method, rounds=4, participation=3)
    for position, node in enumerate(nodes.values()):
        run = own_run(tmp_path / "app", node_config(node))
        (id,) = run.federation.ids
        x = torch.from_numpy(arrays(position)["x_test"])
        torch.testing.assert_close(
            run.personal_model(id)(x), whole.personal_model(id)(x), rtol=1e-5, atol=1e-5
        )
        [ours], theirs = run.evaluate(), whole.evaluate()[position]
        assert ours["accuracy"] == theirs["accuracy"]


def test_shared_weights_meet_the_head_of_their_own_round(tmp_path: Path) -> None:
    """The server ends after training's third round, before its evaluation: the site has weights of the second."""
    nodes = sites(tmp_path)
    evaluations = 0

    def ended(message: Message, context: Context) -> Message:
        nonlocal evaluations
        evaluations += message.metadata.message_type.startswith("evaluate")
        if evaluations == 2:
            raise KeyboardInterrupt
        return client_app(message, context)

    nodes[1000].answer = ended
    with pytest.raises(KeyboardInterrupt):
        train(nodes, tmp_path / "out", rounds=3)
    write_app(tmp_path / "app", settings("pflego"))
    run = own_run(tmp_path / "app", node_config(nodes[1000]))
    assert len(run.history) == 2
    whole = in_one_process(rounds=2)
    x = torch.from_numpy(arrays(0)["x_test"])
    torch.testing.assert_close(
        run.personal_model(NAMES[0])(x), whole.personal_model(NAMES[0])(x), rtol=1e-5, atol=1e-5
    )


def test_a_command_writes_it_for_use_elsewhere(tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    train(nodes, tmp_path / "out")
    write_app(tmp_path / "app", settings("pflego"))
    words = ["deploy", "export", str(tmp_path / "app"), "--node-config", node_config(nodes[1000])]
    told = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "model"), "--format", "safetensors"])
    assert told.exit_code == 0, told.output
    assert f"client {NAMES[0]}'s model after round 4" in told.stdout
    model = pflego.load_model(tmp_path / "model")
    run = own_run(tmp_path / "app", node_config(nodes[1000]))
    x = torch.from_numpy(arrays(0)["x_test"])
    assert torch.equal(model(x), run.personal_model(NAMES[0])(x))


def test_the_last_run_counts(tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    nodes[1000].config["runs"] = 2
    train(nodes, tmp_path / "first", rounds=2, members=NAMES[0], **{"min-clients": 1})
    train(nodes, tmp_path / "second", rounds=3, members=NAMES[0], **{"min-clients": 1})
    write_app(tmp_path / "app", settings("pflego"))
    assert len(own_run(tmp_path / "app", node_config(nodes[1000])).history) == 3


def test_before_any_evaluation_there_is_none(tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    write_app(tmp_path / "app", settings("pflego"))
    with pytest.raises(pflego.UserError, match="no shared weights for client 'clinic' yet"):
        own_run(tmp_path / "app", node_config(nodes[1000]))


def test_the_app_must_be_the_one_of_the_run(tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    train(nodes, tmp_path / "out")
    write_app(tmp_path / "app", settings("fedavg"))
    with pytest.raises(pflego.UserError, match="another model than"):
        own_run(tmp_path / "app", node_config(nodes[1000]))
