from __future__ import annotations

from pathlib import Path

import pytest
import torch

import pflego
from pflego.codec import MessageError
from pflego.deploy.flower.keep import StateFile
from pflego.exchange.round import Round
from pflego.weights import Weights


def head(value: float) -> Weights:
    return {"head": torch.full((2, 3), value)}


def test_a_later_round_begins_where_the_last_one_ended(tmp_path: Path) -> None:
    file = StateFile(tmp_path, "run1", "ward 3")
    assert file.begin(Round(1), "q1") is None
    file.keep(Round(1), "q1", head(0), head(1))
    state = StateFile(tmp_path, "run1", "ward 3").begin(Round(4), "q4")
    assert state is not None
    assert torch.equal(state["head"], head(1)["head"])


def test_the_same_question_again_begins_where_it_began(tmp_path: Path) -> None:
    file = StateFile(tmp_path, "run1", "ward 3")
    file.keep(Round(1), "q1", head(0), head(1))
    file.keep(Round(2), "q2", head(1), head(2))
    for _ in range(2):
        state = file.begin(Round(2), "q2")
        assert state is not None
        assert torch.equal(state["head"], head(1)["head"])


@pytest.mark.parametrize(
    ("number", "question", "why"),
    [(1, "q1", "does not go back"), (2, "another", "with other weights: this client does not repeat it")],
)
def test_a_client_does_not_go_back(number: int, question: str, why: str, tmp_path: Path) -> None:
    file = StateFile(tmp_path, "run1", "ward 3")
    file.keep(Round(2), "q2", head(1), head(2))
    before = file.path.read_bytes()
    with pytest.raises(MessageError, match=why):
        file.begin(Round(number), question)
    assert file.path.read_bytes() == before


def test_every_exchange_of_a_round_begins_where_it_began(tmp_path: Path) -> None:
    file = StateFile(tmp_path, "run1", "ward 3")
    file.keep(Round(1), "q1", head(0), head(1))
    for exchange in range(3):
        now = Round(2, exchange=exchange)
        state = file.begin(now, f"q2.{exchange}")
        assert state is not None
        assert torch.equal(state["head"], head(1 + exchange)["head"])
        file.keep(now, f"q2.{exchange}", state, head(2 + exchange))
    for exchange in range(3):  # a server that was killed asks for all of them again
        state = file.begin(Round(2, exchange=exchange), f"q2.{exchange}")
        assert state is not None
        assert torch.equal(state["head"], head(1 + exchange)["head"])
    for number, value in [(1, 1.0), (2, 4.0)]:
        state = file.as_of(number)
        assert state is not None
        assert torch.equal(state["head"], head(value)["head"])
    with pytest.raises(MessageError, match="does not go back"):
        file.begin(Round(2, exchange=4), "q2.4")


def test_a_state_can_be_had_as_of_the_round_before(tmp_path: Path) -> None:
    file = StateFile(tmp_path, "run1", 3)
    assert file.as_of(7) is None
    file.keep(Round(2), "q2", head(1), head(2))
    for number, value in [(1, 1.0), (2, 2.0), (9, 2.0)]:
        state = file.as_of(number)
        assert state is not None
        assert torch.equal(state["head"], head(value)["head"])


def test_every_run_and_client_has_a_file_of_its_own(tmp_path: Path) -> None:
    for run, client in [("a", "x"), ("b", "x"), ("a", "y"), ("a", "../x")]:
        StateFile(tmp_path / "in", run, client).keep(Round(1), "q", {}, head(len(list(tmp_path.rglob("*")))))
    assert len(list((tmp_path / "in").iterdir())) == 4
    assert list(tmp_path.iterdir()) == [tmp_path / "in"]


def test_a_file_of_another_federation_is_refused_and_left_alone(tmp_path: Path) -> None:
    theirs = StateFile(tmp_path, "theirs", "x")
    theirs.keep(Round(1), "q", head(0), head(1))
    ours = StateFile(tmp_path, "ours", "x")
    theirs.path.rename(ours.path)
    before = ours.path.read_bytes()
    with pytest.raises(MessageError, match=r"is of run 'theirs', not 'ours': it was left as it is"):
        ours.begin(Round(1), "q")
    assert ours.path.read_bytes() == before


def test_a_damaged_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = StateFile(tmp_path, "run1", "x")
    file.keep(Round(1), "q", head(0), head(1))
    content = bytearray(file.path.read_bytes())
    content[-1] ^= 1
    file.path.write_bytes(content)
    with pytest.raises(pflego.FolderError, match="is damaged and was left as it is"):
        file.begin(Round(2), "q2")
    assert file.path.read_bytes() == content
