"""A server gets no more from a site than its operator agreed to, and the operator can read what it got."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, MessageType, RecordDict, UserConfig

import pflego
from pflego.deploy.flower.client import app
from pflego.deploy.flower.messages import pack
from pflego.deploy.folder import write_app
from tests.deploy.flower.test_client import COMMON, ROUND
from tests.support.grid import MemoryGrid, Node, carried, opened
from tests.support.sites import CONFIG, SHAPE, sites


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return sites(tmp_path)[998]


def state_of(node: Node) -> Path:
    return Path(str(node.config["state"]))


def ask(
    node: Node,
    *,
    run: str = "r1",
    number: int = 1,
    settings: UserConfig | None = None,
    evaluate: bool = False,
) -> Message:
    """Give what a node answers, to the same weights every time."""
    MemoryGrid({}, {})
    shared = pflego.models.build("mlp", SHAPE, seed=5).weights()
    facts: dict[str, Any] = {"federation": {**COMMON, "run": run}}
    facts |= (
        {"moment": {"round": number, "adapt": False}} if evaluate else {"round": {**ROUND, "number": number}}
    )
    kind = MessageType.EVALUATE if evaluate else MessageType.TRAIN
    message = carried(Message(pack(shared, facts), 1, kind))
    return app(message, Context(1, 1, node.config, RecordDict(), {**CONFIG, **(settings or {})}))


def answered(asking: Callable[[int], object], times: int) -> int:
    """Count how many of so many questions are answered."""
    count = 0
    for number in range(times):
        try:
            asking(number)
            count += 1
        except pflego.UserError:
            pass
    return count


def log_of(node: Node) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (state_of(node) / "answers.mill.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("evaluate", [False, True])
def test_probes_under_new_names_are_not_answered(evaluate: bool, node: Node) -> None:
    assert answered(lambda i: ask(node, run=f"probe{i}", evaluate=evaluate), 10) == 1
    node.config["runs"] = 3
    assert answered(lambda i: ask(node, run=f"other{i}", evaluate=evaluate), 10) == 2


@pytest.mark.parametrize("evaluate", [False, True])
def test_a_question_is_answered_a_few_times_and_not_again(evaluate: bool, node: Node) -> None:
    assert answered(lambda _: ask(node, evaluate=evaluate), 8) == 5
    ask(node, number=2, evaluate=evaluate)


def test_rounds_are_those_that_were_accepted(node: Node, tmp_path: Path) -> None:
    node.config["rounds"] = 3
    assert answered(lambda i: ask(node, number=i + 1), 6) == 3
    node.config["rounds"] = 0
    write_app(tmp_path / "app", {**CONFIG, "rounds": 4})
    node.config["accepts"] = str(tmp_path / "app")
    assert answered(lambda i: ask(node, number=i + 4), 4) == 1


@pytest.mark.parametrize(
    "settings",
    [{"steps": 500}, {"algorithm": "fedavg"}, {"model": "cifar-cnn"}, {"seed": 6}, {"method.client_lr": 9.0}],
)
def test_an_accepted_app_binds_method_model_and_settings(
    settings: UserConfig, node: Node, tmp_path: Path
) -> None:
    write_app(tmp_path / "app", dict(CONFIG))
    node.config["accepts"] = str(tmp_path / "app")
    ask(node)
    with pytest.raises(pflego.SettingError, match="operator accepted"):
        ask(node, number=2, settings=settings)
    assert [entry["round"] for entry in log_of(node)] == [1]


@pytest.mark.parametrize("what", ["algorithm", "model"])
def test_what_is_not_installed_is_not_imported(
    what: str, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"trap_{what}"  # a module is imported only once
    (tmp_path / f"{name}.py").write_text("from pathlib import Path\nPath('sprung').touch()\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pflego.SettingError, match="operator has not allowed it"):
        ask(node, settings={what: f"{name}:Trap"})
    assert not Path("sprung").exists()
    node.config["allow"] = f"other:Name, {name}:Trap"
    with pytest.raises(pflego.UserError, match="trap"):
        ask(node, settings={what: f"{name}:Trap"})  # there is no Trap in it; its module was imported
    assert Path("sprung").exists()


def test_the_log_tells_what_was_sent(node: Node) -> None:
    sent, _ = opened(ask(node).content)
    ask(node, evaluate=True)
    trained, evaluated = log_of(node)
    assert (trained["run"], trained["kind"], trained["round"]) == ("r1", "train", 1)
    assert trained["norms"].keys() == sent.keys()
    for name, tensor in sent.items():
        assert trained["norms"][name] == pytest.approx(np.linalg.norm(tensor.double().numpy()), rel=1e-4)
    assert (evaluated["kind"], evaluated["norms"]) == ("evaluate", {})


@pytest.mark.parametrize("evaluate", [False, True])
def test_a_lost_state_is_noticed(evaluate: bool, node: Node) -> None:
    ask(node)
    [file] = state_of(node).glob("*.safetensors")
    file.rename(file.with_suffix(".backup"))
    with pytest.raises(pflego.FolderError, match="is gone"):
        ask(node, number=2, evaluate=evaluate)
    file.with_suffix(".backup").rename(file)
    ask(node, number=2, evaluate=evaluate)


def test_a_line_that_a_crash_has_cut_off_is_written_over(node: Node) -> None:
    ask(node)
    file = state_of(node) / "answers.mill.jsonl"
    file.write_text(file.read_text() + '{"run": "r1", "ki')
    ask(node, number=2)
    assert [entry["round"] for entry in log_of(node)] == [1, 2]
