"""What a light client writes and draws is what a full one does, to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pflego import codec, randomness
from pflego.deploy.flower import keep
from pflego.exchange.round import Round
from pflego_light import FolderError, MessageError
from pflego_light import Round as LightRound
from pflego_light import codec as light
from pflego_light.keep import StateFile
from pflego_light.randomness import Generator
from tests.support.light import arrays

FACTS: dict[str, object] = {"round": {"number": 3}, "words": "Zürich", "empty": [], "none": None}
TENSORS = {
    "1.weight": torch.randn(3, 2),
    "a": torch.tensor(2.5),
    "none": torch.zeros(0, 4),
    "head": torch.ones(2),
}


def test_each_reads_what_the_other_writes() -> None:
    ours, theirs = light.encode(arrays(TENSORS), FACTS), codec.encode(TENSORS, FACTS)
    read, back = codec.decode(ours, like=TENSORS), light.decode(theirs)
    assert read.digest == back.digest == codec.digest_of(theirs)
    assert read.facts.facts == back.facts.facts == FACTS
    for name, tensor in TENSORS.items():
        assert torch.equal(read.tensors[name], tensor)
        np.testing.assert_array_equal(back.tensors[name], tensor.numpy())
    assert abs(len(ours) - len(theirs)) <= 64  # the header's spaces and escapes


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_byte_that_is_changed_is_noticed(place: int, value: int) -> None:
    data = bytearray(light.encode(arrays(TENSORS), FACTS))
    place %= len(data)
    if data[place] == value:
        return
    data[place] = value
    try:
        found = light.decode(bytes(data))
    except MessageError:
        return
    assert found.facts.facts == FACTS  # a space in the header
    assert light.digest(found.tensors) == light.digest(arrays(TENSORS))


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 16, light.encode({}, {})[:-3], light.encode(arrays(TENSORS), FACTS) + b"x"]
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MessageError):
        light.decode(data)


def test_weights_of_another_kind_are_refused() -> None:
    decoded = light.decode(light.encode({"w": np.ones((2, 3), np.float32)}, {}))
    decoded.hold_to({"w": (2, 3)})
    infinite = light.decode(light.encode({"w": np.full((2, 3), np.inf, np.float32)}, {}))
    double = light.decode(light.encode({"w": np.ones((2, 3))}, {}))
    for wrong, shapes in [
        (decoded, {"v": (2, 3)}),
        (decoded, {"w": (3, 2)}),
        (infinite, {"w": (2, 3)}),
        (double, {"w": (2, 3)}),
    ]:
        with pytest.raises(MessageError):
            wrong.hold_to(shapes)


@pytest.mark.parametrize("seed", [0, 7, 2**40])
@pytest.mark.parametrize("client", [3, "ward-3"])
def test_draws_are_those_of_torch(seed: int, client: str | int) -> None:
    theirs = randomness.torch_generator(seed, "head", round_number=4, client=client)
    ours = Generator(seed, "head", round_number=4, client=client)
    np.testing.assert_array_equal(ours.uniform(5, 9), torch.rand(5, 9, generator=theirs, dtype=torch.float64))
    for count in (1, 2, 17, 1000):
        np.testing.assert_array_equal(ours.permutation(count), torch.randperm(count, generator=theirs))


def test_a_state_is_kept_as_a_full_client_keeps_it(tmp_path: Path) -> None:
    before, after = {"head": np.zeros((2, 3), np.float32)}, {"head": np.ones((2, 3), np.float32)}
    ours = StateFile(tmp_path, "run1", "ward 3")
    assert ours.begin(LightRound(1), "q1") is None
    ours.keep(LightRound(1), "q1", before, after)
    theirs = keep.StateFile(tmp_path, "run1", "ward 3")
    for number, question, wanted in [(1, "q1", before), (2, "q2", after)]:
        for state in (ours.begin(LightRound(number), question), theirs.begin(Round(number), question)):
            assert state is not None
            np.testing.assert_array_equal(state["head"], wanted["head"])
    content = ours.path.read_bytes()
    for now, question in [(LightRound(1), "another")]:
        with pytest.raises(MessageError, match="does not repeat"):
            ours.begin(now, question)
    ours.keep(LightRound(2), "q2", after, before)
    with pytest.raises(MessageError, match="does not go back"):
        ours.begin(LightRound(1), "q1")
    np.testing.assert_array_equal((ours.as_of(1) or {})["head"], after["head"])
    ours.path.write_bytes(content[:-1] + b"!")
    with pytest.raises(FolderError, match="damaged"):
        ours.begin(LightRound(2), "q2")
    assert ours.path.read_bytes() == content[:-1] + b"!"
    assert ours.path.stat().st_mode & 0o077 == 0
