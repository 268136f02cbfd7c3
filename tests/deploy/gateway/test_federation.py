"""Visitors and sites on Flower in one federation, and what becomes of those who send what they should not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

import pflego
from pflego.codec import decode, encode
from pflego.deploy.flower.app_config import AppConfig
from pflego.deploy.flower.server import serve
from tests.deploy.flower.test_equality import assert_close, assert_same_history, here, state
from tests.support.grid import MemoryGrid
from tests.support.sites import CONFIG, NAMES, sites
from tests.support.visitors import FullDesk, Open, Sent, gateway

VISITORS = NAMES[::2]  # three of the five


@contextmanager
def mixed(
    folder: Path, hostile: Sent | None = None, **changed: bool | float | str
) -> Iterator[tuple[Open, AppConfig]]:
    """Open a gateway with three visitors beside two sites; the first visitor may be hostile."""
    nodes = sites(folder)
    config = {**CONFIG, **changed, "out": str(folder / "server")}
    by_name = {str(node.config["client-id"]): node.config for node in nodes.values()}
    flower = MemoryGrid(
        config, {n: node for n, node in nodes.items() if node.config["client-id"] not in VISITORS}
    )
    with gateway(folder, list(VISITORS), flower, config=config) as opened:
        for name in VISITORS:
            own = FullDesk(by_name[name])
            opened.visit(name, FullDesk(own.node, hostile) if hostile and name == VISITORS[0] else own)
        yield opened, AppConfig.read(config)


def test_the_federation_is_that_of_one_process(tmp_path: Path) -> None:
    with mixed(tmp_path, participation=3) as (opened, config):
        ours = serve(opened.grid, config, poll=0.01)
    theirs = here("pflego")
    assert_close(ours.shared, theirs.shared)
    assert_same_history(ours, theirs)
    for id in NAMES:
        assert_close(state(tmp_path, id), theirs.states[id])


def _garbage(answer: bytes) -> bytes:
    return np.random.default_rng(0).bytes(len(answer))


def _not_finite(answer: bytes) -> bytes:
    read = decode(answer)
    return encode({name: one * float("nan") for name, one in read.tensors.items()}, read.facts.facts)


def _other_shape(answer: bytes) -> bytes:
    read = decode(answer)
    return encode({name: torch.zeros(3, 3) for name in read.tensors}, read.facts.facts)


def _other_names(answer: bytes) -> bytes:
    read = decode(answer)
    return encode({f"{name}.x": one for name, one in read.tensors.items()}, read.facts.facts)


def _no_digest(answer: bytes) -> bytes:
    return answer[:-4] + b"\0\0\0\0" if answer[-4:] != b"\0\0\0\0" else answer[:-4] + b"\1\0\0\0"


def _enormous(answer: bytes) -> bytes:
    read = decode(answer)
    return encode({name: one * 1e6 for name, one in read.tensors.items()}, read.facts.facts)


def _impossible(answer: bytes) -> bytes:
    read = decode(answer)
    metrics = {**read.facts.inner("metrics").facts, "test": [10**6, "mean", 10**6]}
    return encode(read.tensors, {**read.facts.facts, "metrics": metrics})


@pytest.mark.parametrize(
    "wrong", [_garbage, _not_finite, _other_shape, _other_names, _no_digest, _enormous, _impossible]
)
def test_what_is_wrong_is_dropped_and_the_round_goes_on(wrong: object, tmp_path: Path) -> None:
    assert callable(wrong)
    with mixed(
        tmp_path, lambda kind, answer: wrong(answer) if kind == "train" else answer, rounds=2, missing="zero"
    ) as (opened, config):
        ours = serve(opened.grid, config, poll=0.01)
    assert [(row["participants"], row["missing"], row["rejected"]) for row in ours.history] == [(5, 0, 1)] * 2
    assert all(bool(torch.isfinite(one).all()) for one in ours.shared.values())


def test_the_answer_of_an_earlier_round_is_still_one_of_this_client(tmp_path: Path) -> None:
    """Replayed, it is a gradient like any other; nothing is counted twice, and nobody else is touched."""
    said: list[bytes] = []

    def replayed(kind: str, answer: bytes) -> bytes:
        said.extend([answer] if kind == "train" else [])
        return said[0] if kind == "train" else answer

    with mixed(tmp_path, replayed, rounds=2) as (opened, config):
        ours = serve(opened.grid, config, poll=0.01)
    assert [row["rejected"] for row in ours.history] == [0, 0]
    assert [row["participants"] for row in ours.history] == [5, 5]


def test_a_visitor_who_is_no_member_is_left_out(tmp_path: Path) -> None:
    others = ", ".join(NAMES[1:])
    with mixed(tmp_path, members=others, rounds=1) as (opened, config):
        ours = serve(opened.grid, config, poll=0.01)
    assert ours.federation.ids == NAMES[1:]
    assert not (tmp_path / NAMES[0] / "state").joinpath("shared").exists()


def test_a_members_name_belongs_to_its_token(tmp_path: Path) -> None:
    with mixed(tmp_path, rounds=1) as (opened, config):
        serve(opened.grid, config, poll=0.01)
    (tmp_path / "tokens.json").unlink()  # a new token for the same name is another key
    nodes = sites(tmp_path / "again")
    given = {**CONFIG, "rounds": 2, "wait": 0.5, "out": str(tmp_path / "server")}
    flower = MemoryGrid(
        given, {n: node for n, node in nodes.items() if node.config["client-id"] not in VISITORS}
    )
    by_name = {str(node.config["client-id"]): node.config for node in nodes.values()}
    with gateway(tmp_path, [VISITORS[0]], flower, config=given) as opened:
        opened.visit(VISITORS[0], FullDesk(by_name[VISITORS[0]]))
        ours = serve(opened.grid, AppConfig.read(given), poll=0.01)
    assert [row["missing"] for row in ours.history] == [0, 3]


def test_the_reply_of_a_visitor_without_an_answer_is_missing(tmp_path: Path) -> None:
    def refuses(kind: str, answer: bytes) -> bytes:
        if kind == "train":
            raise pflego.errors.UserError("no")
        return answer

    with mixed(tmp_path, refuses, rounds=1) as (opened, config):
        ours = serve(opened.grid, config, poll=0.01)
    assert [row["missing"] for row in ours.history] == [1]
