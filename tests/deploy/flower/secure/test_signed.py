"""Signed sums: a server can neither invent clients nor tell them different things."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from flwr.app import Context, Message, UserConfig

import pflego
from pflego.deploy.certificates import write_key
from pflego.deploy.flower.client import app
from pflego.deploy.flower.secure.party import advertise
from pflego.deploy.flower.secure.roster import Keys
from tests.deploy.flower.secure.test_site import ALL, SETTINGS, Sites
from tests.support.cases import often
from tests.support.grid import Node
from tests.support.sites import NAMES, sites, train

SIGNED: UserConfig = {**SETTINGS, "secure-signed": True}


def known_to_each_other(folder: Path) -> dict[int, Node]:
    """Sites with keys, and a folder of everybody's public ones."""
    nodes = sites(folder)
    (folder / "peers").mkdir()
    for node in nodes.values():
        name = str(node.config["client-id"])
        private, public = write_key(folder / "keys" / name)
        (folder / "peers" / f"{name}.pub").write_bytes(public.read_bytes())
        node.config |= {"peers": str(folder / "peers"), "identity": str(private)}
    return nodes


@pytest.fixture
def asked(tmp_path: Path) -> Sites:
    found = Sites(known_to_each_other(tmp_path), settings=SIGNED)
    found.keys()
    return found


def agree(asked: Sites, name: str, active: list[int], lost: list[int]) -> str:
    return str(asked.ask(name, "agree", {}, active=active, lost=lost)[1]["signature"])


def reveal(
    asked: Sites, name: str, active: list[int], lost: list[int], signatures: Mapping[str, str]
) -> object:
    return asked.ask(name, "unmask", {}, active=active, lost=lost, signatures=signatures)


def ready(asked: Sites) -> None:
    asked.share()
    for name in NAMES:
        asked.masked(name)


def test_training_is_that_of_plain_sums(tmp_path: Path) -> None:
    given: dict[str, bool | float | int | str | None] = {
        "rounds": 2, "server_optimizer": "sgd", "server_lr": 0.1, "evaluate_every": 0,
    }  # fmt: skip
    nodes = known_to_each_other(tmp_path / "signed")
    run = train(
        nodes,
        tmp_path / "signed" / "server",
        **given,
        **{"secure": True, "secure-clip": 10.0, "secure-signed": True},
    )
    plain = train(sites(tmp_path / "plain"), tmp_path / "plain" / "server", **given)
    for name, tensor in plain.shared.items():
        torch.testing.assert_close(run.shared[name], tensor, rtol=1e-4, atol=1e-6)
    assert nodes[998].asked.count("train.agree") == 3  # two rounds, and the evaluation


@pytest.mark.parametrize("stage", ["train.agree", "train.unmask"])
@pytest.mark.parametrize("site", often([1000, 998]))
def test_a_server_killed_after_the_masked_contributions_goes_on(
    stage: str, site: int, tmp_path: Path
) -> None:
    class PowerCut(BaseException):
        pass

    def cut(message: Message, context: Context) -> Message:
        if message.metadata.message_type == stage:
            raise PowerCut
        return app(message, context)

    nodes = known_to_each_other(tmp_path)
    given: dict[str, bool | float | int | str | None] = {
        "rounds": 1, "evaluate_every": 0, "secure": True, "secure-clip": 10.0, "secure-signed": True,
    }  # fmt: skip
    nodes[site].answer = cut
    with pytest.raises(PowerCut):
        train(nodes, tmp_path / "server", **given)
    nodes[site].answer = app
    assert train(nodes, tmp_path / "server", **given).history[0]["missing"] == 0


def test_keys_that_the_server_has_made_up_are_refused(asked: Sites) -> None:
    """A server in the middle, that puts keys of its own in the place of a client's, or of a client that is none."""
    own = advertise(asked.session, "tower").keys
    entry = asked.roster.entries[4]
    wrong = {
        "no signature": replace(entry, keys=own),
        "another's signature": replace(entry, keys=replace(own, signature=entry.keys.signature)),
        "nonsense": replace(entry, keys=replace(entry.keys, signature="zz")),
        "one key exchanged": replace(entry, keys=Keys(entry.keys.encryption, own.mask, entry.keys.signature)),
    }
    for changed in wrong.values():
        roster = replace(asked.roster, entries=(*asked.roster.entries[:4], changed))
        with pytest.raises(pflego.UserError, match="'tower' are not signed by it"):
            asked.ask("mill", "shares", {}, roster=roster.facts)
    stranger = replace(asked.roster, entries=(*asked.roster.entries[:4], replace(entry, client="stranger")))
    with pytest.raises(pflego.UserError, match="'stranger' is nobody whom this site knows"):
        asked.ask("mill", "shares", {}, roster=stranger.facts)
    assert asked.ask("mill", "shares", {}, roster=asked.roster.facts)


def test_keys_of_an_earlier_sum_are_refused(asked: Sites) -> None:
    old = asked.roster.entries[4]
    asked.session = replace(asked.session, round=2)
    asked.keys()
    roster = replace(asked.roster, entries=(*asked.roster.entries[:4], old))
    with pytest.raises(pflego.UserError, match="not signed by it"):
        asked.ask("mill", "shares", {}, roster=roster.facts)


def test_a_server_that_tells_different_stories_unmasks_nothing(asked: Sites) -> None:
    """Some are told that the last has arrived, the others that it has not: neither list has enough signatures."""
    ready(asked)
    stories: dict[str, tuple[list[int], list[int]]] = {
        name: (ALL[:4], [4]) if name in ("mill", "school") else (ALL, []) for name in NAMES
    }
    signed = {str(number): agree(asked, name, *stories[name]) for number, name in enumerate(NAMES)}
    for name in NAMES:
        with pytest.raises(
            pflego.UserError, match=r"[23] clients have signed whom the sum is of, and it needs 4"
        ):
            reveal(asked, name, *stories[name], signatures=signed)
    with pytest.raises(pflego.UserError, match="another sum than this client has signed"):
        reveal(asked, "mill", *stories["clinic"], signatures=signed)
    with pytest.raises(pflego.UserError, match="answered before, to another question"):
        agree(asked, "clinic", *stories["mill"])


def test_a_list_is_signed_only_if_it_may_be_unmasked(asked: Sites) -> None:
    ready(asked)
    for active, lost, why in [(ALL, [4], "both secrets"), ([0, 1, 2], [3, 4], "the sum needs 4")]:
        with pytest.raises(pflego.UserError, match=why):
            agree(asked, "mill", active, lost)
    with pytest.raises(pflego.UserError, match="the stage 'unmask' after the stage 'masked'"):
        reveal(asked, "mill", ALL, [], {})
    for name in NAMES:
        agree(asked, name, ALL, [])
    with pytest.raises(pflego.UserError, match="0 clients have signed"):
        reveal(asked, "mill", ALL, [], {})


def test_enough_signatures_unmask(asked: Sites) -> None:
    ready(asked)
    signatures = {str(number): agree(asked, name, ALL, []) for number, name in enumerate(NAMES)}
    few = dict(list(signatures.items())[:3])
    swapped = {**few, "3": signatures["4"], "4": signatures["3"]}
    for wrong in (few, swapped):
        with pytest.raises(pflego.UserError, match="3 clients have signed"):
            reveal(asked, "mill", ALL, [], wrong)
    assert reveal(asked, "mill", ALL, [], signatures)


def test_a_site_that_knows_nobody_takes_no_part(tmp_path: Path) -> None:
    with pytest.raises(pflego.SettingError, match="are signed: name a folder"):
        Sites(sites(tmp_path), settings=SIGNED).ask("mill", "keys", {})
    nodes = known_to_each_other(tmp_path / "known")
    nodes[998].config["identity"] = str(tmp_path / "nowhere")
    with pytest.raises(pflego.FolderError, match="cannot read this site's key"):
        Sites(nodes, settings=SIGNED).ask("mill", "keys", {})


def test_without_signatures_there_is_nothing_to_agree_on(tmp_path: Path) -> None:
    asked = Sites(sites(tmp_path))
    asked.keys()
    ready(asked)
    with pytest.raises(pflego.UserError, match="the stage 'agree' after the stage 'masked'"):
        agree(asked, "mill", ALL, [])
