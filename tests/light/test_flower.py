"""A light site is a site like any other: light and full ones make one federation, and refuse the same."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from flwr.app import Context, Message

import pflego
from pflego.after.kit import Graphs, export_graphs, write_kit
from pflego.deploy.flower.site_config import Assignment
from pflego_light import Kit
from pflego_light.errors import SettingError
from pflego_light.flower.app import answer
from pflego_light.flower.worker import reply_to
from pflego_light.terms import check_run_config
from tests.deploy.flower.test_equality import METHODS, assert_close, assert_same_history, here, state
from tests.support.cases import often
from tests.support.grid import Node, opened
from tests.support.light import assert_near
from tests.support.sites import CONFIG, NAMES, SHAPE, sites, train

pytestmark = pytest.mark.usefixtures("onnx_operators")

LIGHT = NAMES[::2]  # three of the five


@pytest.fixture(scope="module")
def graphs() -> Graphs:
    return export_graphs(pflego.models.build("mlp", SHAPE, seed=5), torch.randn(16, *SHAPE))


def kit_for(folder: Path, graphs: Graphs, **asked: object) -> Kit:
    """The kit that goes with a run config, read."""
    return Kit.read(kit_folder(folder, graphs, **asked))


def kit_folder(folder: Path, graphs: Graphs, **asked: object) -> Path:
    """The kit that goes with a run config."""
    wanted = Assignment.read(
        {name: value for name, value in {**CONFIG, **asked}.items() if value is not None}
    )
    return write_kit(
        folder / "kit",
        wanted.model(SHAPE),
        wanted.algorithm,
        torch.zeros(1, *SHAPE),
        seed=wanted.seed,
        streaming=wanted.streaming,
        graphs=graphs,
    ).folder


def mixed(folder: Path, kit: Kit, *, classes: bool = True) -> dict[int, Node]:
    """Sites of both kinds."""
    nodes = sites(folder, classes=classes)
    for node in nodes.values():
        if node.config["client-id"] in LIGHT:
            del node.config["allow"]  # it has no code of anybody's
            node.answer = partial(answer, kit)
    return nodes


@pytest.mark.parametrize(
    "given",
    often(
        [
            ("pflego", {}),
            ("pflego, common head", {}),
            ("pflego", {"head-optimizer": "solve"}),
            ("fedavg", {}),
            ("fedprox", {"client_lr": 0.1}),
            ("fedrep", {"client_lr": 0.1}),
        ]
    ),
)
def test_light_and_full_sites_make_one_federation(
    given: tuple[str, dict[str, float | str]], tmp_path: Path, graphs: Graphs
) -> None:
    method, more = given
    name = method.partition(",")[0]
    asked = {**METHODS[method], **more, "algorithm": name}
    nodes = mixed(tmp_path / "mixed", kit_for(tmp_path, graphs, **asked))
    ours = train(nodes, tmp_path / "ours", **asked, participation=3)
    theirs = train(sites(tmp_path / "full"), tmp_path / "theirs", **asked, participation=3)
    assert_close(ours.shared, theirs.shared)
    assert_same_history(ours, theirs)
    for id in NAMES:
        assert_close(state(tmp_path / "mixed", id), state(tmp_path / "full", id))


@pytest.fixture(scope="module")
def frozen() -> Graphs:
    model = pflego.models.build("mlp", SHAPE, seed=5, frozen="all")
    return export_graphs(model, torch.randn(16, *SHAPE))


FROZEN: dict[str, bool | float | str] = {"model.frozen": "all", "common_head": True}


def test_a_backbone_that_is_frozen_is_that_of_full_sites(tmp_path: Path, frozen: Graphs) -> None:
    nodes = mixed(tmp_path / "mixed", kit_for(tmp_path, frozen, **FROZEN))
    ours = train(nodes, tmp_path / "ours", **FROZEN, participation=3)
    theirs = train(sites(tmp_path / "full"), tmp_path / "theirs", **FROZEN, participation=3)
    assert ours.shared.keys() == {"head"}
    assert_near(ours.shared, theirs.shared)


def test_a_kit_with_other_frozen_weights_than_the_servers_sends_nothing(
    tmp_path: Path, frozen: Graphs
) -> None:
    kit = kit_for(tmp_path, frozen, **FROZEN)
    other = replace(kit, spec={**kit.spec, "backbone": {**kit.spec["backbone"], "base": "0" * 32}})
    run = train(mixed(tmp_path / "mixed", other), tmp_path / "ours", **FROZEN)
    assert [row["missing"] for row in run.history] == [len(LIGHT)] * 4


def test_the_federation_is_that_of_one_process(tmp_path: Path, graphs: Graphs) -> None:
    ours = train(
        mixed(tmp_path, kit_for(tmp_path, graphs), classes=False), tmp_path / "server", participation=3
    )
    theirs = here("pflego", classes=False)
    assert_close(ours.shared, theirs.shared)
    assert_same_history(ours, theirs)


@pytest.mark.parametrize(
    "asked",
    often([{}, {"common_head": True, "head_decay": 0.01}, {"algorithm": "fedper", "client_lr": 0.1}]),
)
def test_a_light_site_that_comes_late_joins_as_a_full_one_does(
    asked: dict[str, bool | float | str], tmp_path: Path, graphs: Graphs
) -> None:
    late: dict[str, float | str] = {
        "population": f'{{"join": {{"{LIGHT[1]}": 2, "{LIGHT[2]}": 3}}}}',
        "min-clients": 3,
    }
    nodes = mixed(tmp_path / "mixed", kit_for(tmp_path, graphs, **asked))
    ours = train(nodes, tmp_path / "ours", **late, **asked)
    theirs = train(sites(tmp_path / "full"), tmp_path / "theirs", **late, **asked)
    assert [row["participants"] for row in ours.history] == [3, 4, 5, 5]
    assert_near(ours.shared, theirs.shared)
    for id in LIGHT:
        assert_near(state(tmp_path / "mixed", id), state(tmp_path / "full", id))


def test_a_round_that_is_asked_for_again_is_answered_to_the_bit(tmp_path: Path, graphs: Graphs) -> None:
    kit = kit_for(tmp_path, graphs)
    nodes = mixed(tmp_path, kit)

    def twice(message: Message, context: Context) -> Message:
        """Answer, as if the server had been killed and asked again."""
        first, again = (answer(kit, message, context) for _ in range(2))
        (sent, facts), (same, others) = opened(first.content), opened(again.content)
        assert facts | {"seconds": 0} == others | {"seconds": 0}
        assert sent.keys() == same.keys()
        assert all(torch.equal(sent[name], same[name]) for name in sent)
        return again

    for node in nodes.values():
        if node.config["client-id"] in LIGHT:
            node.answer = twice
    ours, theirs = train(nodes, tmp_path / "server", participation=3), here("pflego")
    assert_close(ours.shared, theirs.shared)
    for id in NAMES:
        assert_close(state(tmp_path, id), theirs.states[id])
    log = (tmp_path / LIGHT[0] / "state" / f"answers.{LIGHT[0]}.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in log]
    assert kinds[:2] == ["query", "query"]
    assert kinds.count("evaluate") == 4  # twice, after rounds 2 and 4


@pytest.mark.parametrize(
    "asked",
    [
        {"steps": 6},
        {"client-lr": 0.2},
        {"seed": 6},
        {"algorithm": "fedavg", "client_lr": 0.1},
        {"model.personal": "1.bias"},
        {"slice_size": 4},
        {"method.head_step": "exact"},
        {"common_head": True},
        {"compression": "quantise:8"},
        {"privacy": "clip=1,noise=1", "classes": "0-4"},
        {"secure": True, "secure_clip": 10},
    ],
)
def test_a_run_that_the_kit_was_not_made_for_is_refused(
    asked: dict[str, float | str], tmp_path: Path, graphs: Graphs
) -> None:
    nodes = mixed(tmp_path, kit_for(tmp_path, graphs))
    for number in [n for n, node in nodes.items() if node.config["client-id"] not in LIGHT]:
        del nodes[number]
    with pytest.raises(pflego.errors.UserError):
        train(nodes, tmp_path / "server", **{"min-clients": 3, "wait": 0.3, **asked})
    assert not list(tmp_path.glob("*/state/*.safetensors"))


@pytest.mark.parametrize("name", ["image_size", "lora", "lora_alpha"])
def test_layers_that_the_kit_has_not_are_refused(name: str, tmp_path: Path, graphs: Graphs) -> None:
    kit = kit_for(tmp_path, graphs)
    check_run_config(kit, CONFIG)
    with pytest.raises(SettingError):
        check_run_config(kit, {**CONFIG, f"model.{name}": 2})


def test_what_goes_without_saying_may_be_said(tmp_path: Path, graphs: Graphs) -> None:
    nodes = mixed(tmp_path, kit_for(tmp_path, graphs))
    said: dict[str, float | str] = {
        "method.client_lr": "centred",
        "head-decay": 0,
        "model": "mlp",
        "memory": "1GB",
        "rounds": 1,
    }
    assert len(train(nodes, tmp_path / "server", **said).history) == 1


def test_limits_of_the_operator_are_kept(tmp_path: Path, graphs: Graphs) -> None:
    nodes = mixed(tmp_path, kit_for(tmp_path, graphs))
    for node in nodes.values():
        if node.config["client-id"] in LIGHT:
            node.config["rounds"] = 1
            node.answer = partial(reply_to, kit_for(tmp_path, graphs))
    run = train(nodes, tmp_path / "server", rounds=2, evaluate_every=0)
    assert [row["missing"] for row in run.history] == [0, 3]


def test_a_lost_state_is_not_begun_anew(tmp_path: Path, graphs: Graphs) -> None:
    nodes = mixed(tmp_path, kit_for(tmp_path, graphs))
    train(nodes, tmp_path / "server", rounds=1, evaluate_every=0)
    [file] = (tmp_path / LIGHT[0] / "state").glob("*.safetensors")
    file.unlink()
    run = train(nodes, tmp_path / "server", rounds=2, evaluate_every=0)
    assert [row["missing"] for row in run.history] == [0, 1]
    assert not file.exists()
