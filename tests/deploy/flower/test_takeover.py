"""One client cannot take over a federation, whatever it says of itself and whatever it sends."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Error, Message, UserConfig
from hypothesis import given
from hypothesis import strategies as st

import pflego
from pflego.deploy.flower.client import app
from pflego.deploy.flower.gathering import capped
from tests.support.grid import Answer, Node, alter
from tests.support.sites import NAMES, PATIENCE, SHAPE, arrays, sites, train

LIAR = "mill"
NODE = 1000 - NAMES.index(LIAR)
RATE = 0.25
SIZES = np.array([len(arrays(position)["y_train"]) for position in range(len(NAMES))], dtype=np.float64)


def claiming(**facts: object) -> Answer:
    """Give a ClientApp that says something else of itself."""

    def answer(message: Message, context: Context) -> Message:
        reply = app(message, context)
        if message.metadata.message_type == "query":
            alter(reply.content, lambda _, said: said.update(facts))
        return reply

    return answer


@given(st.lists(st.integers(1, 10**9), min_size=3, max_size=9), st.floats(0.05, 1))
def test_no_share_is_above_its_limit_and_nobody_gains(samples: list[int], share: float) -> None:
    counted = capped(samples, share)
    assert all(1 <= after <= before for after, before in zip(counted, samples, strict=True))
    assert max(counted) <= max(share, 1 / len(samples)) * sum(counted) + 1
    if max(samples) <= share * sum(samples):
        assert counted == samples


def test_a_claim_of_a_billion_samples_counts_for_half(tmp_path: Path) -> None:
    """Each client shrinks the weights by its own share, which tells how much each of them counted."""
    nodes = sites(tmp_path)
    nodes[NODE].answer = claiming(samples=10**9)
    method: dict[str, float | str | None] = {
        "algorithm": "tests.support.guest:Shrinking",
        "shrink-rate": RATE,
        "steps": None,
    }
    run = train(nodes, tmp_path / "server", rounds=1, **method)
    importance = SIZES.copy()
    importance[NAMES.index(LIAR)] = 0
    importance[NAMES.index(LIAR)] = importance.sum()
    importance /= importance.sum()
    remain = 1 - importance @ (RATE * SIZES / 100)
    first = pflego.models.build("mlp", SHAPE, seed=5).weights()
    for name, tensor in run.shared.items():
        np.testing.assert_allclose(tensor.double(), remain * first[name].double(), rtol=1e-5)


@pytest.mark.parametrize(
    ("claim", "settings", "why"),
    [
        ({"samples": 2**53}, {}, "max_samples allows"),
        ({"samples": 1000}, {"max-samples": 500}, "max_samples allows 500"),
        ({"tests": 1000}, {"max-samples": 500}, "max_samples allows 500"),
        ({"mass": 500.5}, {"max-samples": 500}, "max_samples allows 500"),
        ({"mass": 0.0}, {}, "its weights sum to 0"),
        ({"mass": float("nan")}, {}, "its mass is nan"),
        ({"samples": 31}, {"sample-limits": "mill: 30, tower: 1000"}, "sample_limits allows 30"),
        ({"classes": [0, 2, 3, 99]}, {"classes": "0-4"}, "has the classes 99, and classes are 0-4"),
    ],
)
def test_claims_beyond_the_operators_limits_are_turned_away(
    claim: dict[str, object],
    settings: dict[str, int | str],
    why: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes = sites(tmp_path)
    nodes[NODE].answer = claiming(**claim)
    with caplog.at_level(logging.WARNING, "flwr.pflego"):
        run = train(nodes, tmp_path / "server", rounds=1, **{"min-clients": 4, **settings})
    assert LIAR not in run.federation.ids
    assert why in caplog.text


@pytest.mark.parametrize("classes", ["a", "3-1", "-1", "0-9999999"])
def test_classes_are_numbers(classes: str, tmp_path: Path) -> None:
    with pytest.raises(pflego.SettingError, match="classes must be numbers"):
        train(sites(tmp_path), tmp_path / "server", classes=classes)


@pytest.mark.parametrize(
    "limits", ["mill", "mill: many", ": 30", "mill: 0", "mill: -3", "mill: 1" + "0" * 5000]
)
def test_sample_limits_are_ids_and_numbers(limits: str, tmp_path: Path) -> None:
    with pytest.raises(pflego.SettingError, match="sample_limits must be"):
        train(sites(tmp_path), tmp_path / "server", **{"sample-limits": limits})


def test_a_test_set_that_has_grown_is_turned_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nodes = sites(tmp_path)
    train(nodes, tmp_path / "server", rounds=1)
    nodes[NODE].answer = claiming(tests=600)
    with caplog.at_level(logging.WARNING, "flwr.pflego"):
        run = train(nodes, tmp_path / "server", rounds=2, wait=PATIENCE)
    assert run.history[1]["missing"] == 1
    assert "now has 600 test samples and had 6" in caplog.text


def exaggerating(factor: float) -> Answer:
    """Give a ClientApp that sends a multiple of what it has computed."""

    def answer(message: Message, context: Context) -> Message:
        reply = app(message, context)
        if message.metadata.message_type == "train":
            alter(
                reply.content, lambda tensors, _: tensors.update({n: factor * t for n, t in tensors.items()})
            )
        return reply

    return answer


def honest_accuracy(folder: Path, *, factor: float, **settings: float) -> float:
    """Train ten clients, the first of which sends a multiple, with SGD on the server; give the others' accuracy."""
    nodes = {}
    for client in pflego.load("digits", clients=10, classes_per_client=2, seed=0):
        site = folder / str(client.id)
        site.mkdir(parents=True)
        np.savez(
            site / "own.npz",
            x_train=client.x_train, y_train=client.y_train, x_test=client.x_test, y_test=client.y_test,
        )  # fmt: skip
        config: UserConfig = {
            "client-id": int(client.id), "data": str(site / "own.npz"), "state": str(site), "device": "cpu",
        }  # fmt: skip
        nodes[int(client.id) + 1] = Node(config, key=str(client.id).encode())
    nodes[1].answer = exaggerating(factor)
    method = {"server-optimizer": "sgd", "server-lr": 1.0, "steps": 10, "rounds": 20, "seed": 0}
    run = train(
        nodes,
        folder / "server",
        **{**method, "min-clients": 10, "max-loss": 1e30, "evaluate_every": 0, **settings},
    )
    assert all(row["rejected"] == (abs(factor) > 10 and not settings) for row in run.history)
    shares = run.evaluations[20][1:]
    return float(np.mean([100 * share for share in shares if share is not None]))


@pytest.mark.thorough
def test_whoever_sends_minus_900_times_its_gradient_harms_nobody_else(tmp_path: Path) -> None:
    """The figures of docs/deployment.md: without the limit of norms, one of ten brings down the other nine."""
    undisturbed = honest_accuracy(tmp_path / "undisturbed", factor=1.0)
    without = honest_accuracy(tmp_path / "without", factor=-900.0, **{"norm-factor": 1e9})
    limited = honest_accuracy(tmp_path / "limited", factor=-900.0)
    assert undisturbed > 99
    assert without < 80
    assert limited > undisturbed - 0.5


def test_a_run_without_replies_stops_and_says_why_without_control_characters(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(message: Message, context: Context) -> Message:
        if message.metadata.message_type == "query":
            return app(message, context)
        return Message(Error(2, "no\nmemory \x1b[31m left" + "x" * 10_000), reply_to=message)

    nodes = sites(tmp_path)
    for node in nodes.values():
        node.answer = broken
    with (
        caplog.at_level(logging.WARNING, "flwr.pflego"),
        pytest.raises(pflego.UserError, match=r"no reply of use in 2 rounds in a row \(client .*memory"),
    ):
        train(nodes, tmp_path / "server", rounds=9, patience=2)
    lines = [line for line in caplog.messages if "no answer" in line]
    assert all(line.isprintable() and len(line) < 700 for line in lines)
    assert len(lines) == 2 * len(NAMES)
    for node in nodes.values():
        node.answer = app
    run = train(nodes, tmp_path / "server", rounds=3, patience=2)
    assert len(run.history) == 3
    assert run.history[-1]["missing"] == 0
