"""A site in a secure sum refuses stages out of turn, stages asked again, and what would show its contribution."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict, UserConfig

import pflego
from pflego.codec import Reader
from pflego.deploy.flower.client import app
from pflego.deploy.flower.facts import Common
from pflego.deploy.flower.messages import pack, read_round
from pflego.deploy.flower.secure.content import contribution_of, question_of
from pflego.deploy.flower.secure.fixed_point import Layout, added
from pflego.deploy.flower.secure.party import Revealed
from pflego.deploy.flower.secure.roster import Entry, Keys, Roster, Session
from pflego.deploy.flower.secure.settings import SecureSum
from pflego.deploy.flower.secure.tally import unmask
from pflego.weights import Weights
from tests.deploy.flower.test_client import COMMON, ROUND
from tests.support.grid import Facts, MemoryGrid, Node, carried, opened
from tests.support.sites import CONFIG, NAMES, SHAPE, federation, sites

RULES = SecureSum(on=True, clip=10.0)
SETTINGS: UserConfig = {**CONFIG, "secure": True, "secure-clip": 10.0}
SHARED = pflego.models.build("mlp", SHAPE, seed=5).weights()
FIGURES = ["loss", "test", "clipped"]


class Sites:
    """Real sites, and a server that asks them what it likes."""

    def __init__(self, nodes: dict[int, Node], *, settings: UserConfig = SETTINGS) -> None:
        MemoryGrid({}, {})
        self.nodes = {str(node.config["client-id"]): node for node in nodes.values()}
        self.settings = settings
        self.session = Session("r1", "train", 1, 0, "a" * 32)
        self.tokens: dict[int, dict[str, str]] = {}
        self.commitments: dict[int, str] = {}

    def ask(self, name: str, stage: str, tensors: Weights, **facts: object) -> tuple[Weights, Facts]:
        content = pack(tensors, {"session": asdict(self.session), **facts})
        return opened(self.send(name, f"train.{stage}", content).content)

    def send(self, name: str, kind: str, content: RecordDict) -> Message:
        context = Context(1, 1, self.nodes[name].config, RecordDict(), self.settings)
        return app(carried(Message(content, 1, kind)), context)

    def keys(self) -> None:
        heard = {name: self.ask(name, "keys", {})[1] for name in NAMES}
        self.roster = Roster(
            self.session,
            tuple(Entry(name, 0.2, 1.0, 0.2, Keys.read(Reader(told))) for name, told in heard.items()),
        )

    def share(self) -> None:
        for number, name in enumerate(NAMES):
            told = self.ask(name, "shares", {}, roster=self.roster.facts)[1]
            self.tokens[number], self.commitments[number] = told["tokens"], told["commitment"]

    def question(self, name: str, **changed: object) -> dict[str, Any]:
        own = NAMES.index(name)
        return {
            "tokens": {str(n): tokens[str(own)] for n, tokens in self.tokens.items() if n != own},
            "round": ROUND,
            "federation": COMMON,
            "figures": FIGURES,
            **changed,
        }  # fmt: skip

    def masked(self, name: str, tensors: Weights = SHARED, **changed: object) -> torch.Tensor:
        return self.ask(name, "masked", tensors, **self.question(name, **changed))[0]["masked"]

    def reveal(self, name: str, active: list[int], lost: list[int]) -> Facts:
        return self.ask(name, "unmask", {}, active=active, lost=lost)[1]


@pytest.fixture
def asked(tmp_path: Path) -> Sites:
    """Sites that have shared their keys."""
    found = Sites(sites(tmp_path))
    found.keys()
    found.share()
    return found


ALL = list(range(len(NAMES)))


def test_an_honest_server_gets_the_sum(asked: Sites) -> None:
    """Against the weighted sum of what each client sends in one process."""
    sent = {number: asked.masked(name) for number, name in enumerate(NAMES)}
    revealed = {}
    for number, name in enumerate(NAMES):
        told = asked.reveal(name, ALL, [])
        revealed[number] = Revealed({int(n): text for n, text in told["seeds"].items()}, {})
    values = sum(tensor.numel() for tensor in SHARED.values())
    layout = Layout(values, 2 * len(FIGURES), len(NAMES), asked.roster.weight * 10.0)
    now = read_round(Reader(asked.question("mill")["round"]))
    question = question_of(SHARED, now, Common.read(Reader(COMMON)), FIGURES)
    words = unmask(
        asked.roster, added(layout.unpack(octets.numpy()) for octets in sent.values()), layout, question,
        active=ALL, lost=[], revealed=revealed, commitments=asked.commitments, needed=RULES.needed(5),
    )  # fmt: skip
    row, figures = layout.decode(words)
    ours = contribution_of(row, SHARED)

    def here(**changed: float | str) -> pflego.Run:
        return pflego.train(
            federation(), pflego.models.build("mlp", SHAPE, seed=5), pflego.PFLEGO(steps=5, **changed),  # type: ignore[arg-type]
            rounds=1, seed=5, weighting="equal", device="cpu", evaluate_every=0,
        )  # fmt: skip

    stepped = here(server_lr=1.0, server_optimizer="sgd")
    for name, first in SHARED.items():
        exact = first - stepped.shared[name]
        assert float((ours[name] - exact).norm()) < 1e-4 * float(exact.norm())
    assert figures[0] / figures[1] == pytest.approx(here().history[0]["loss"], rel=1e-5)


def test_the_same_question_has_the_same_answer_and_another_has_none(asked: Sites) -> None:
    """Two answers under the same masks would show their difference."""
    first = asked.masked("mill")
    assert torch.equal(asked.masked("mill"), first)
    other = {name: tensor + 0.5 for name, tensor in SHARED.items()}
    without_one = {n: t for n, t in asked.question("mill")["tokens"].items() if n != "0"}
    questions: list[tuple[Weights, dict[str, object]]] = [
        (other, {}),
        (SHARED, {"tokens": without_one}),
        (SHARED, {"figures": ["loss"]}),
    ]
    for tensors, changed in questions:
        with pytest.raises(pflego.UserError, match="answered before, to another question"):
            asked.masked("mill", tensors, **changed)
    assert torch.equal(asked.masked("mill"), first)


def test_shares_are_given_once_and_to_one_roster(asked: Sites) -> None:
    again = asked.ask("mill", "shares", {}, roster=asked.roster.facts)[1]
    assert again["tokens"] == asked.tokens[NAMES.index("mill")]
    smaller = Roster(asked.session, asked.roster.entries[:4])
    with pytest.raises(pflego.UserError, match="answered before, to another question"):
        asked.ask("mill", "shares", {}, roster=smaller.facts)


@pytest.mark.parametrize(
    ("stage", "ask"),
    [
        ("keys", lambda asked: asked.ask("mill", "keys", {})),
        ("shares", lambda asked: asked.ask("mill", "shares", {}, roster=asked.roster.facts)),
    ],
)
def test_a_stage_before_the_last_one_is_refused(
    stage: str, ask: Callable[[Sites], object], asked: Sites
) -> None:
    asked.masked("mill")
    with pytest.raises(pflego.UserError, match=f"{stage}"):
        ask(asked)


def test_a_stage_that_is_left_out_is_refused(tmp_path: Path) -> None:
    asked = Sites(sites(tmp_path))
    with pytest.raises(pflego.UserError, match="that this client is not in"):
        asked.masked("mill")
    asked.keys()
    with pytest.raises(pflego.UserError, match="the stage 'masked' after the stage 'keys'"):
        asked.masked("mill")
    asked.share()
    with pytest.raises(pflego.UserError, match="the stage 'unmask' after the stage 'shares'"):
        asked.reveal("mill", ALL, [])


def test_one_sum_of_a_round_is_unmasked_and_no_other(asked: Sites) -> None:
    """Of two sums that differ in a client, the difference is that client's contribution."""
    for name in NAMES:
        asked.masked(name)
    first = asked.reveal("mill", ALL, [])
    assert asked.reveal("mill", ALL, []) == first
    with pytest.raises(pflego.UserError, match="answered before, to another question"):
        asked.reveal("mill", ALL[:4], [4])
    asked.session = Session("r1", "train", 1, 0, "b" * 32)
    with pytest.raises(pflego.UserError, match="was unmasked before"):
        asked.ask("mill", "keys", {})
    [file] = Path(str(asked.nodes["mill"].config["state"])).glob("*.stage")
    file.unlink()  # the log of answers remembers it too
    with pytest.raises(pflego.UserError, match="was unmasked before"):
        asked.ask("mill", "keys", {})
    asked.session = Session("r1", "train", 2, 0, "b" * 32)
    assert asked.ask("mill", "keys", {})[1].keys() == {"encryption", "mask", "signature"}


@pytest.mark.parametrize(
    ("active", "lost", "why"),
    [
        (ALL, [0], "both secrets"),
        ([0, 1, 2], [3, 4], "the sum needs 4"),
        ([0, 1, 3, 4], [2], "asks it all the same"),
        ([0, 1, 2, 3], [], "not those who were there"),
    ],
)
def test_no_two_secrets_of_a_client_are_revealed(
    active: list[int], lost: list[int], why: str, asked: Sites
) -> None:
    asked.masked("mill")
    with pytest.raises(pflego.UserError, match=why):
        asked.reveal("mill", active, lost)
    assert asked.reveal("mill", [0, 1, 2, 3], [4])["keys"].keys() == {"4"}  # an honest one still


def test_a_new_attempt_has_new_keys_and_forgets_the_old_ones(asked: Sites) -> None:
    first = asked.masked("mill")
    old = asked.roster
    asked.session = Session("r1", "train", 1, 0, "b" * 32)
    asked.keys()
    ours = {key for entry in asked.roster.entries for key in (entry.keys.mask, entry.keys.encryption)}
    assert not ours & {key for entry in old.entries for key in (entry.keys.mask, entry.keys.encryption)}
    asked.share()
    second = asked.masked("mill")
    assert np.mean(first.numpy() == second.numpy()) < 0.02
    asked.session = old.session
    with pytest.raises(pflego.UserError, match="that this client is not in"):
        asked.reveal("mill", ALL, [])


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"round": {"number": 2}}, "is not that of the sum"),
        ({"round": {"exchange": 1}}, "is not that of the sum"),
        ({"round": {"alpha": 0.9}}, "not with the weights that all were told"),
        ({"round": {"scale": 7.0}}, "not with the weights that all were told"),
        ({"federation": {"run": "r2"}}, "is not that of the sum"),
        ({"federation": {"classes": [0]}}, "are not those of these data"),
        ({"figures": ["loss", "loss"]}, "is in it twice"),
        ({"figures": [str(n) for n in range(500)]}, "too many"),
        ({"tokens": {"x": "y"}}, "no client's number"),
        ({"tokens": {}}, "are left in the sum"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_and_leaves_no_answer(
    changed: dict[str, Any], why: str, asked: Sites
) -> None:
    whole = asked.question("mill")
    for name, value in changed.items():
        merge = isinstance(value, dict) and name != "tokens"
        whole[name] = {**whole[name], **value} if merge else value
    with pytest.raises(pflego.UserError, match=why):
        asked.ask("mill", "masked", SHARED, **whole)
    asked.masked("mill")  # the honest question has an answer


def test_work_that_comes_to_nothing_is_not_in_the_sum(asked: Sites) -> None:
    with pytest.raises(pflego.UserError, match="not finite, and is not sent"):
        asked.masked("mill", {name: torch.full_like(tensor, 3e38) for name, tensor in SHARED.items()})


def test_what_is_a_sites_own_is_asked_for_in_vain(tmp_path: Path) -> None:
    asked = Sites(sites(tmp_path))
    plain = {key: value for key, value in asked.question("mill").items() if key in ("round", "federation")}
    moment = {"moment": {"round": 1, "adapt": False}, "federation": COMMON}
    for kind, facts in (("train", plain), ("evaluate", moment)):
        with pytest.raises(pflego.UserError, match="secure sums alone"):
            asked.send("mill", kind, pack(SHARED, facts))


def test_a_server_cannot_loosen_what_the_operator_accepted(tmp_path: Path) -> None:
    from pflego.deploy.folder import write_app

    write_app(tmp_path / "app", SETTINGS)
    nodes = sites(tmp_path)
    for node in nodes.values():
        node.config["accepts"] = str(tmp_path / "app")
    for name, value in [
        ("secure", False),
        ("secure-threshold", 0.51),
        ("secure-clip", 1e6),
        ("secure-share", 0.99),
    ]:
        asked = Sites(nodes, settings={**SETTINGS, name: value})
        with pytest.raises(pflego.SettingError, match=f"the server asks for {name.replace('-', '_')}"):
            asked.ask("mill", "keys", {})
    assert Sites(nodes).ask("mill", "keys", {})


def test_a_site_without_secure_sums_takes_no_part_in_one(tmp_path: Path) -> None:
    with pytest.raises(pflego.UserError, match="have none"):
        Sites(sites(tmp_path), settings=CONFIG).ask("mill", "keys", {})


def test_the_operators_log_tells_what_went_into_the_sum(asked: Sites) -> None:
    asked.masked("mill")
    [file] = Path(str(asked.nodes["mill"].config["state"])).glob("answers.mill.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["train keys", "train shares", "train masked"]
    assert lines[-1]["norms"].keys() == SHARED.keys()
    assert lines[-1]["kept"]
