"""Clients in JavaScript beside full ones, in one federation: their rounds come to what torch's do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from flwr.app import Context, Message

import pflego
from pflego.after.kit import Graphs, export_graphs
from pflego.codec import decode, encode
from tests.deploy.flower.test_equality import assert_same_history, here, state
from tests.light.test_flower import kit_folder
from tests.support.cases import often
from tests.support.grid import Node, opened
from tests.support.light import assert_near
from tests.support.sites import CONFIG, NAMES, SHAPE, sites, train
from tests.support.tabs import RefusedError, Tabs, needs_node, tabs

pytestmark = needs_node
IN_TABS = NAMES[::2]  # three of the five

METHODS: dict[str, dict[str, bool | float | str]] = {
    "auto rates": {},
    "the paper's": {"client_lr": 0.05, "server_lr": 0.02, "server_optimizer": "sgd", "head_init": "uniform"},
    "exact": {"head_step": "exact", "server_optimizer": "sgd", "server_lr": 0.1, "head_init": "layer"},
    "one step": {"steps": 1, "server_optimizer": "sgd", "server_lr": 0.05, "head_init": "centred"},
    "common head": {"common_head": True},
    "decay": {"head_decay": 0.05},
    "solved": {"head_optimizer": "solve"},
    "solved, common head": {"head_optimizer": "solve", "common_head": True},
    "momentum": {"head_optimizer": "momentum"},
    "adam": {"head_optimizer": "adam", "client_lr": 0.01, "head_init": "layer"},
    "samples": {"sample": 9},
    "slices": {"slice_size": 5, "memory": "1KB"},
    "objective": {"objective": "qfair:0.5"},
}


@pytest.fixture(scope="module")
def graphs() -> Graphs:
    return export_graphs(pflego.models.build("mlp", SHAPE, seed=5), torch.randn(16, *SHAPE))


@pytest.fixture(scope="module")
def process() -> Iterator[Tabs]:
    with tabs() as started:
        yield started


def mixed(folder: Path, kit: Path, process: Tabs, *, classes: bool = True) -> dict[int, Node]:
    """Sites of both kinds."""
    nodes = sites(folder, classes=classes)
    for node in nodes.values():
        client = str(node.config["client-id"])
        if client in IN_TABS:
            process.open(client, kit, Path(str(node.config["data"])))
            node.answer = process.answer
    return nodes


@pytest.mark.parametrize("method", often(METHODS))
def test_tabs_and_full_sites_make_one_federation(
    method: str, tmp_path: Path, graphs: Graphs, process: Tabs
) -> None:
    asked = METHODS[method]
    nodes = mixed(tmp_path / "mixed", kit_folder(tmp_path, graphs, **asked), process)
    ours = train(nodes, tmp_path / "ours", **asked, participation=3)
    theirs = train(sites(tmp_path / "full"), tmp_path / "theirs", **asked, participation=3)
    assert_near(ours.shared, theirs.shared)
    assert_same_history(ours, theirs)
    for id in NAMES:
        kept = process.state(id) if id in IN_TABS else state(tmp_path / "mixed", id)
        assert_near(kept, state(tmp_path / "full", id))


def test_regression_is_that_of_one_process(tmp_path: Path, graphs: Graphs, process: Tabs) -> None:
    nodes = mixed(tmp_path, kit_folder(tmp_path, graphs), process, classes=False)
    ours, theirs = train(nodes, tmp_path / "server", participation=3), here("pflego", classes=False)
    assert_near(ours.shared, theirs.shared)
    assert_same_history(ours, theirs)


def test_a_backbone_that_is_frozen_is_that_of_full_sites(tmp_path: Path, process: Tabs) -> None:
    asked: dict[str, bool | float | str] = {"model.frozen": "all", "common_head": True}
    graphs = export_graphs(pflego.models.build("mlp", SHAPE, seed=5, frozen="all"), torch.randn(16, *SHAPE))
    nodes = mixed(tmp_path / "mixed", kit_folder(tmp_path, graphs, **asked), process)
    ours = train(nodes, tmp_path / "ours", **asked, participation=3)
    theirs = train(sites(tmp_path / "full"), tmp_path / "theirs", **asked, participation=3)
    assert ours.shared.keys() == {"head"}
    assert_near(ours.shared, theirs.shared)


def test_a_tab_that_comes_late_joins_as_a_full_site_does(
    tmp_path: Path, graphs: Graphs, process: Tabs
) -> None:
    late: dict[str, float | str] = {
        "population": f'{{"join": {{"{IN_TABS[1]}": 2, "{IN_TABS[2]}": 3}}}}',
        "min-clients": 3,
    }
    nodes = mixed(tmp_path / "mixed", kit_folder(tmp_path, graphs), process)
    ours = train(nodes, tmp_path / "ours", **late)
    theirs = train(sites(tmp_path / "full"), tmp_path / "theirs", **late)
    assert [row["participants"] for row in ours.history] == [3, 4, 5, 5]
    assert_near(ours.shared, theirs.shared)
    for id in IN_TABS:
        assert_near(process.state(id), state(tmp_path / "full", id))


def test_a_round_that_is_asked_for_again_is_answered_to_the_bit(
    tmp_path: Path, graphs: Graphs, process: Tabs
) -> None:
    nodes = mixed(tmp_path, kit_folder(tmp_path, graphs), process)

    def twice(message: Message, context: Context) -> Message:
        """Answer, as if the tab had been closed before its answer was out."""
        first, again = (process.answer(message, context) for _ in range(2))
        (sent, facts), (same, others) = opened(first.content), opened(again.content)
        assert facts | {"seconds": 0} == others | {"seconds": 0}
        assert all(torch.equal(sent[name], same[name]) for name in sent)
        return again

    for node in nodes.values():
        if node.config["client-id"] in IN_TABS:
            node.answer = twice
    ours, theirs = train(nodes, tmp_path / "server", participation=3), here("pflego")
    assert_near(ours.shared, theirs.shared)
    for id in IN_TABS:
        assert_near(process.state(id), theirs.states[id])
    notes = process.notes(IN_TABS[0])
    assert [one["kind"] for one in notes[:2]] == ["query", "query"]
    kept = [one for one in notes if one["kind"] == "train"]
    assert all(
        one["kept"] and [sent["name"] for sent in one["sent"]] == ["1.weight", "1.bias"] for one in kept
    )


@pytest.mark.parametrize(
    "asked",
    [{"steps": 6}, {"seed": 6}, {"slice_size": 4}, {"common_head": True}, {"compression": "quantise:8"}],
)
def test_a_run_that_the_kit_was_not_made_for_is_refused(
    asked: dict[str, float | str], tmp_path: Path, graphs: Graphs, process: Tabs
) -> None:
    mixed(tmp_path, kit_folder(tmp_path, graphs), process)
    with pytest.raises(RefusedError):
        process.answer_bytes(IN_TABS[0], "query", {**CONFIG, **asked}, b"")
    assert not process.notes(IN_TABS[0])


def test_questions_that_make_no_sense_are_refused(tmp_path: Path, graphs: Graphs, process: Tabs) -> None:
    """An earlier round, the same one with other weights, a sixth time, another run, weights that do not fit."""
    process.open("clinic", kit_folder(tmp_path, graphs), Path(str(sites(tmp_path)[1000].config["data"])))
    shapes: dict[str, tuple[int, ...]] = {"1.weight": (200, 8), "1.bias": (200,)}

    def question(number: int, run: str = "one", fill: float = 0.01, **changed: object) -> bytes:
        federation = {
            "run": run, "clients": 2, "samples": 100, "task": "classification", "classes": [0, 1], "most_classes": 2,
            "outputs": 2, "schema": "",
        }  # fmt: skip
        now = {"number": number, "scale": 1.0, "alpha": 0.5, "seed": 5, "exchange": 0, "emphasis": None}
        shared = {name: torch.full(shape, fill) for name, shape in shapes.items()}
        return encode(shared, {"round": now, "federation": {**federation, **changed}})

    def ask(data: bytes) -> bytes:
        return process.answer_bytes("clinic", "train", dict(CONFIG), data)

    first = ask(question(2))
    assert decode(ask(question(2))).tensors.keys() == decode(first).tensors.keys()
    kept = process.state("clinic")
    shapes["1.bias"] = (199,)
    odd = question(3)
    shapes["1.bias"] = (200,)
    wrong = [
        odd,
        question(1),
        question(2, fill=0.02),
        question(3, run="two"),
        question(3, fill=float("nan")),
        question(3, classes=[5, 6]),
        question(3, schema="abc"),
        question(3, base="abc"),
        question(20_000),
        question(3)[:-1],
        b"",
    ]
    for one in wrong:
        with pytest.raises(RefusedError):
            ask(one)
    for _ in range(3):
        ask(question(2))
    with pytest.raises(RefusedError):
        ask(question(2))
    assert all(torch.equal(kept[name], one) for name, one in process.state("clinic").items())
    ask(question(3))
