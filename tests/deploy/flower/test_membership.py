"""Sites that come late and sites that go, as planned or when the operator says so: rounds are their members'."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, MessageType, RecordDict, UserConfig
from torch import nn

import pflego
from pflego.algorithms.registry import find_method
from pflego.deploy.flower.client import app
from pflego.deploy.flower.messages import WELCOME, pack
from pflego.deploy.folder import write_app
from pflego.deploy.requests import Request, ask
from pflego.exchange.weighting import WeightingName
from pflego.federation.draws import Participation
from pflego.files import read_tensors
from pflego.training.loop import NothingLearnedWarning
from tests.deploy.flower.test_client import COMMON
from tests.deploy.flower.test_equality import METHODS, assert_close, assert_same_history, state
from tests.deploy.flower.test_interruption import PowerCut, round_of, watched
from tests.federation.test_population import POPULATION, THERE, play
from tests.support.cases import often
from tests.support.grid import MemoryGrid, Node, carried, opened
from tests.support.reference import assert_same_weights, distance, timeless, world
from tests.support.sites import CONFIG, NAMES, SHAPE, federation, sites, train

# tower comes late, mill goes and comes back, clinic goes for good
PLAN = pflego.Population(join={"tower": 2, "mill": 4}, leave={"mill": 2, "clinic": 3})
MEMBERS = [4, 4, 3, 4]


def node_of(name: str) -> int:
    return 1000 - NAMES.index(name)


def here(method: str = "pflego", *, population: pflego.Population, rounds: int = 4) -> pflego.Run:
    """The same in one process, with those who come late at the end, as they came."""
    own = {"steps": CONFIG["steps"], **METHODS[method]}
    return pflego.train(
        federation(),
        pflego.models.build("mlp", SHAPE, seed=5),
        find_method(method.partition(",")[0])(
            **{name: value for name, value in own.items() if value is not None}
        ),
        rounds=rounds,
        participation=2,
        population=population,
        seed=5,
        evaluate_every=2,
        device="cpu",
    )


def assert_same_run(folder: Path, ours: pflego.Run, theirs: pflego.Run) -> None:
    assert_close(ours.shared, theirs.shared)
    assert_same_history(ours, theirs)
    assert list(ours.federation.ids) == list(theirs.federation.ids)
    for number, figures in theirs.evaluations.items():
        assert ours.evaluations[number] == pytest.approx(figures)
    for name in theirs.federation.ids:
        if list((folder / str(name) / "state").glob("*.safetensors")):  # it was asked at least once
            assert_close(state(folder, str(name)), theirs.states[name])


def backbone() -> nn.Module:
    """The network of the NumPy twin."""
    return world(clients=6).model.backbone


@pytest.mark.parametrize("weighting", often(["samples", "equal"]))
@pytest.mark.parametrize(
    "process",
    [
        pflego.Fixed(2),
        pflego.Binomial(0.6),
        pflego.Everyone(),
        pflego.Independent({f"c{i}": 0.3 + 0.1 * i for i in range(6)}),
    ],
    ids=["fixed", "binomial", "everyone", "independent"],
)
def test_rounds_are_those_of_their_members(
    process: Participation, weighting: WeightingName, tmp_path: Path
) -> None:
    twin = world(clients=6)
    nodes = {}
    for position, client in enumerate(twin.federation):
        folder = tmp_path / str(client.id)
        folder.mkdir()
        parts = {name: getattr(client, name).numpy() for name in ("x_train", "y_train", "x_test", "y_test")}
        np.savez(folder / "own.npz", **parts)
        config: UserConfig = {
            "client-id": str(client.id), "data": str(folder / "own.npz"), "state": str(folder / "state"),
            "device": "cpu", "allow": f"{__name__}:backbone",
        }  # fmt: skip
        nodes[9 - position] = Node(config, key=str(client.id).encode())
    asked: UserConfig = {
        "rounds": 10, "participation": str(process), "weighting": weighting, "seed": 3, "population": str(POPULATION),
        "model": f"{__name__}:backbone", "evaluate_every": 5, "steps": 3, "client-lr": 0.2, "server-lr": 0.1,
        "server-optimizer": "sgd", "head-step": "exact", "min-clients": 4, "max-share": 1.0, "norm-factor": 1e9,
    }  # fmt: skip
    run = train(nodes, tmp_path / "server", **asked)
    drawn = play(twin, process, weighting)
    assert [run.participants(t) for t in range(1, 11)] == [[f"c{i}" for i in chosen] for chosen in drawn]
    assert distance(run.shared["0.weight"], twin.net.V) < 1e-10
    assert distance(run.shared["0.bias"], twin.net.v) < 1e-10
    for i, head in enumerate(twin.heads):
        if any(head.ravel()):
            assert distance(state(tmp_path, f"c{i}")["head"], head) < 1e-10
    assert [row["members"] for row in run.history] == [len(there) for there in THERE]
    assert [row["joined"] for row in run.history] == [0, 0, 0, 1, 0, 1, 0, 1, 0, 0]
    assert [row["left"] for row in run.history] == [0, 0, 1, 0, 1, 0, 0, 0, 1, 0]
    assert run.plan.population == POPULATION


@pytest.mark.parametrize(
    "method",
    often(
        [
            "pflego",
            "pflego, common head",
            "fedavg",
            "fedavg, global classes",
            "ditto",
            "fedrep",
            "feddbe",
            "fedproto",
        ],
        *("pflego", "pflego, common head", "fedavg, global classes"),
    ),
)
def test_it_is_the_run_of_one_process(method: str, tmp_path: Path) -> None:
    ours = train(
        sites(tmp_path), tmp_path / "server", **METHODS[method], algorithm=method.partition(",")[0],
        participation=2, population=str(PLAN), **{"min-clients": 4},
    )  # fmt: skip
    theirs = here(method, population=PLAN)
    assert [row["members"] for row in ours.history] == MEMBERS
    assert_same_run(tmp_path, ours, theirs)
    opened = pflego.open_run(tmp_path / "server")
    assert opened.plan.population == PLAN
    assert [opened.participants(t) for t in range(1, 5)] == [theirs.participants(t) for t in range(1, 5)]


def test_a_site_that_is_not_there_in_its_round_joins_when_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = sites(tmp_path)
    late = nodes.pop(node_of("tower"))

    def arrive(message: Message) -> None:
        if round_of(message) == 3:
            nodes[7] = late

    nodes[node_of("mill")].answer = watched(arrive)
    wanted = pflego.Population(join={"tower": 2})
    with caplog.at_level("WARNING", "flwr.pflego"):
        ours = train(
            nodes, tmp_path / "server", participation="everyone", population=str(wanted), rounds=5,
            members=", ".join(NAMES),
        )  # fmt: skip
    assert caplog.text.count("client 'tower' is due and not here") == 1
    assert [row["members"] for row in ours.history] == [4, 4, 4, 5, 5]
    assert [row["missing"] for row in ours.history] == [0] * 5
    assert ours.plan.population == pflego.Population(join={"tower": 4})
    assert late.asked == ["query", WELCOME, "train", "evaluate", "train", "evaluate"]
    theirs = pflego.train(
        federation(), pflego.models.build("mlp", SHAPE, seed=5), pflego.PFLEGO(steps=5), rounds=5,
        population=ours.plan.population, seed=5, evaluate_every=2, device="cpu",
    )  # fmt: skip
    assert_same_run(tmp_path, ours, theirs)


def test_who_has_left_is_not_asked_and_may_be_switched_off(tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    gone = nodes[node_of("clinic")]

    def switch_off(message: Message) -> None:
        if round_of(message) == 2:
            nodes.pop(node_of("clinic"), None)

    nodes[node_of("mill")].answer = watched(switch_off)
    wanted = pflego.Population(leave={"clinic": 2, "mill": 4})
    run = train(nodes, tmp_path / "server", rounds=5, population=str(wanted))
    assert [row["participants"] for row in run.history] == [5, 4, 4, 3, 3]
    assert [row["missing"] for row in run.history] == [0] * 5
    assert gone.asked == ["query", "train"]
    assert nodes[node_of("mill")].asked == ["query", "train", "train", "evaluate", "train"]
    [archived] = (tmp_path / "clinic" / "state").glob("*.safetensors")
    assert read_tensors(archived)[1].whole("round", least=1) == 1
    assert run.evaluations[2][0] is None
    assert run.evaluations[5].count(None) == 2


def by_event(nodes: dict[int, Node], out: Path) -> Callable[[Message], None]:
    """Beside round 2, the operator lets tower in, which comes in round 3, and says that mill is gone."""
    late = nodes.pop(node_of("tower"))

    def happen(message: Message) -> None:
        if round_of(message) == 2 and not (out / "requests.jsonl").exists():
            ask(out, Request("leave", "mill"))
            ask(out, Request("join", "tower"))
        if round_of(message) == 3:
            nodes[7] = late
        if round_of(message) == 4 and (out / "requests.jsonl").read_text().count("\n") == 2:
            ask(out, Request("join", "mill"))

    return happen


HAPPENED = pflego.Population(join={"tower": 4, "mill": 5}, leave={"mill": 3})


def test_members_come_and_go_while_a_run_goes_on(tmp_path: Path) -> None:
    nodes, out = sites(tmp_path), tmp_path / "server"
    nodes[node_of("clinic")].answer = watched(by_event(nodes, out))
    ours = train(nodes, out, participation="everyone", rounds=6, **{"min-clients": 4})
    theirs = pflego.train(
        federation(), pflego.models.build("mlp", SHAPE, seed=5), pflego.PFLEGO(steps=5), rounds=6,
        population=HAPPENED, seed=5, evaluate_every=2, device="cpu",
    )  # fmt: skip
    assert ours.plan.population == HAPPENED
    assert [row.get("members") for row in ours.history] == [None, None, 3, 4, 5, 5]
    assert_close(ours.shared, theirs.shared)
    for name in NAMES:
        assert_close(state(tmp_path, name), theirs.states[name])
    page = pflego.open_run(out).report(tmp_path / "report.html").read_text()
    assert "3 to 5 members at a time" in page


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (WELCOME, 2),
        pytest.param("train", 2, marks=pytest.mark.thorough),
        ("train", 3),
        pytest.param("train", 4, marks=pytest.mark.thorough),
        ("evaluate", 4),
    ],
)
def test_a_server_killed_around_joins_and_leaves_goes_on_as_if_nothing_had_happened(
    kind: str, number: int, tmp_path: Path
) -> None:
    def cut(message: Message) -> None:
        told = {"train": "round", WELCOME: "arrival", "evaluate": "moment"}[kind]
        if message.metadata.message_type == kind and number in opened(message.content)[1][told].values():
            raise PowerCut

    config: UserConfig = {"participation": "everyone", "population": str(PLAN), "min-clients": 4}
    whole = train(sites(tmp_path / "whole"), tmp_path / "whole" / "server", **config)
    nodes = sites(tmp_path / "cut")
    victim = nodes[node_of("tower")]
    victim.answer = watched(cut)
    with pytest.raises(PowerCut):
        train(nodes, tmp_path / "cut" / "server", **config)
    victim.answer = app
    ours = train(nodes, tmp_path / "cut" / "server", **config)
    assert timeless(ours.history) == timeless(whole.history)
    assert ours.plan.population == whole.plan.population == PLAN
    assert_same_weights(ours.shared, whole.shared)
    for name in NAMES:
        assert_same_weights(state(tmp_path / "cut", name), state(tmp_path / "whole", name))


def test_a_request_never_changes_a_round_that_has_begun(tmp_path: Path) -> None:
    nodes, out = sites(tmp_path), tmp_path / "server"

    def cut(message: Message) -> None:
        if round_of(message) == 2:
            raise PowerCut

    nodes[node_of("mill")].answer = watched(
        cut
    )  # clinic and harbour come after it, the others have done round 2
    with pytest.raises(PowerCut):
        train(nodes, out)
    ask(out, Request("leave", "mill"))
    nodes[node_of("mill")].answer = app
    run = train(nodes, out)
    assert [row["participants"] for row in run.history] == [5, 5, 4, 4]
    assert [row["missing"] for row in run.history] == [0] * 4
    assert run.plan.population == pflego.Population(leave={"mill": 3})


def test_nobody_waits_at_the_start_for_who_is_gone_for_good(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes, out = sites(tmp_path), tmp_path / "server"
    train(nodes, out, rounds=2)
    del nodes[node_of("mill")]
    ask(out, Request("leave", "mill"))
    with caplog.at_level("INFO", "flwr.pflego"):
        run = train(nodes, out, rounds=4, wait=1)
    assert "4 of 4 clients are here" in caplog.text
    assert [row["participants"] for row in run.history] == [5, 5, 4, 4]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"participation": 5}, "client 'mill' cannot leave: population: in round 2 there are 4 members"),
        ({"objective": "agnostic:0.1"}, "client 'mill' cannot leave: population: agnostic"),
        ({"algorithm": "scaffold", "client-lr": 0.1}, "client 'mill' cannot leave: scaffold"),
    ],
)
def test_what_the_run_cannot_go_on_with_is_not_done(
    settings: UserConfig, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes, out = sites(tmp_path), tmp_path / "server"

    def happen(message: Message) -> None:
        if round_of(message) == 1:
            ask(out, Request("leave", "mill"))

    nodes[node_of("mill")].answer = watched(happen)
    with caplog.at_level("WARNING", "flwr.pflego"):
        run = train(nodes, out, rounds=3, **settings)
    assert caplog.text.count(why) == 1
    assert [row["participants"] for row in run.history] == [5, 5, 5]
    assert run.plan.population is None


def test_a_shared_head_has_no_place_for_a_newcomers_classes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = str(pflego.Population(join={"school": 2}))  # nobody else has class 3 and class 4 and class 0
    config: UserConfig = {"population": wanted, "min-clients": 4, "rounds": 3}
    common: UserConfig = {"algorithm": "fedavg", "labels": "local", "client-lr": 0.1}
    nodes = {number: node for number, node in sites(tmp_path / "a").items() if number != node_of("harbour")}
    with caplog.at_level("WARNING", "flwr.pflego"):
        run = train(nodes, tmp_path / "a" / "server", **{**config, **common, "min-clients": 3})
    assert "client 'school' has classes that the shared head has no place for" in caplog.text
    assert [row["members"] for row in run.history] == [3, 3, 3]
    nodes = {number: node for number, node in sites(tmp_path / "b").items() if number != node_of("harbour")}
    own = train(nodes, tmp_path / "b" / "server", **{**config, "min-clients": 3})
    assert [row["members"] for row in own.history] == [3, 4, 4]


def test_a_stranger_is_let_in_by_the_operator_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nodes, out = sites(tmp_path), tmp_path / "server"
    with caplog.at_level("WARNING", "flwr.pflego"):
        train(nodes, out, rounds=2, members="clinic, harbour, mill, school")
        assert "'tower' is not among those this run is for" in caplog.text
        ask(out, Request("join", "tower"))
        run = train(nodes, out, rounds=4, members="clinic, harbour, mill, school")
    assert [row["participants"] for row in run.history] == [4, 4, 5, 5]
    again = train(nodes, out, rounds=5, members="clinic, harbour, mill, school")
    assert again.history[-1]["participants"] == 5


@pytest.mark.parametrize(
    ("population", "words"),
    [
        ("tests.federation.test_population:by_round", "a function is for simulations"),
        ('{"leave": {"palace": 2}}', "no client 'palace'"),
        ('{"leave": {"palace": 2', "not valid JSON"),
    ],
)
def test_what_cannot_be_is_refused(population: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(pflego.SettingError, match=words):
        train(sites(tmp_path), tmp_path / "server", population=population)


def test_requests_are_for_runs_that_have_begun_and_clients_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(pflego.FolderError, match="holds no run on Flower"):
        ask(tmp_path, Request("leave", "mill"))
    train(sites(tmp_path), tmp_path / "server", rounds=1)
    with pytest.raises(pflego.SettingError, match="no client 'palace'"):
        ask(tmp_path / "server", Request("leave", "palace"))
    ask(tmp_path / "server", Request("join", "palace"))
    ask(tmp_path / "server", Request("leave", "palace"))
    assert (tmp_path / "server" / "requests.jsonl").read_text().count("palace") == 2


def test_an_apps_settings_hold_the_population_itself(tmp_path: Path) -> None:
    (tmp_path / "members.json").write_text(json.dumps({"join": {"ward-7": [3, 9]}, "leave": {"ward-7": 6}}))
    write_app(tmp_path / "app", {"population": str(tmp_path / "members.json")})
    text = (tmp_path / "app" / "pyproject.toml").read_text()
    assert '"ward-7": [3, 9]' in text.replace("\\", "")
    assert "members.json" not in text


def welcome(node: Node, *, number: int = 3, steps: int | None = None, shift: float = 0.0) -> Message:
    """Give what a node answers when it is asked to join."""
    MemoryGrid({}, {})
    shared = {n: w + shift for n, w in pflego.models.build("mlp", SHAPE, seed=5).weights().items()}
    facts = {"arrival": {"round": number, "steps": steps}, "federation": COMMON}
    message = carried(Message(pack(shared, facts), 1, WELCOME))
    return app(message, Context(1, 1, node.config, RecordDict(), CONFIG))


def test_a_newcomer_makes_its_head_ready_and_tells_nothing_of_it(tmp_path: Path) -> None:
    node = sites(tmp_path)[node_of("mill")]
    reply = welcome(node)
    first = state(tmp_path, "mill")["head"]
    with pytest.warns(NothingLearnedWarning):  # nobody takes part, and the weights stay as they are
        theirs = pflego.train(
            federation(), pflego.models.build("mlp", SHAPE, seed=5), pflego.PFLEGO(steps=5), rounds=2, seed=5,
            population=pflego.Population(join={"mill": 2}), participation=pflego.Binomial(1e-9),
            evaluate_every=None, device="cpu",
        )  # fmt: skip
    torch.testing.assert_close(first, theirs.states["mill"]["head"], rtol=1e-5, atol=1e-6)
    assert opened(reply.content) == ({}, {"round": 3})
    welcome(node, shift=0.1)  # it was not taken in then, and comes with the weights of later
    assert not torch.equal(state(tmp_path, "mill")["head"], first)
    welcome(node, shift=0.1, steps=1)
    once = state(tmp_path, "mill")["head"]
    welcome(node, shift=0.1, steps=1)
    assert torch.equal(state(tmp_path, "mill")["head"], once)


def test_who_has_taken_part_keeps_its_head(tmp_path: Path) -> None:
    node = sites(tmp_path)[node_of("mill")]
    shared = pflego.models.build("mlp", SHAPE, seed=5).weights()
    now = {"number": 2, "scale": 1.0, "largest_scale": 1.0, "alpha": 0.2, "seed": 5, "exchange": 0}
    MemoryGrid({}, {})
    message = carried(Message(pack(shared, {"round": now, "federation": COMMON}), 1, MessageType.TRAIN))
    app(message, Context(1, 1, node.config, RecordDict(), CONFIG))
    before = state(tmp_path, "mill")
    with pytest.raises(pflego.UserError, match="has taken part already"):
        welcome(node)
    assert_same_weights(state(tmp_path, "mill"), before)


def test_a_lost_head_of_a_newcomer_is_noticed(tmp_path: Path) -> None:
    node = sites(tmp_path)[node_of("mill")]
    welcome(node)
    [file] = (tmp_path / "mill" / "state").glob("*.safetensors")
    file.unlink()
    now = {"number": 3, "scale": 1.0, "largest_scale": 1.0, "alpha": 0.2, "seed": 5, "exchange": 0}
    shared = pflego.models.build("mlp", SHAPE, seed=5).weights()
    message = carried(Message(pack(shared, {"round": now, "federation": COMMON}), 1, MessageType.TRAIN))
    with pytest.raises(pflego.FolderError, match="is gone"):
        app(message, Context(1, 1, node.config, RecordDict(), CONFIG))


def test_somebody_elses_key_does_not_come_in_its_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = sites(tmp_path)
    impostor = Node(nodes[node_of("tower")].config, key=b"stolen")

    def intrude(message: Message) -> None:
        if round_of(message) == 1:
            nodes[3] = impostor

    nodes[node_of("mill")].answer = watched(intrude)
    with caplog.at_level("WARNING", "flwr.pflego"):
        wanted = str(pflego.Population(join={"tower": 4}))
        run = train(nodes, tmp_path / "server", population=wanted, rounds=5, **{"min-clients": 4})
    assert "client 'tower' is there already, with another key" in caplog.text
    assert impostor.asked == ["query"]
    assert [row["participants"] for row in run.history] == [4, 4, 4, 5, 5]
