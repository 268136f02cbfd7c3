"""What is written and what travels: it comes back as it was, and nothing else is believed."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from math import inf, nan
from typing import TypeAlias

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from pflego import UserError
from pflego.codec import (
    _FACTS,
    _FORMAT,
    _HEADER,
    MessageError,
    Reader,
    decode,
    digest,
    digest_of,
    encode,
    some,
)
from pflego.weights import Weights, nbytes

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool,
]  # fmt: skip
texts = st.text(st.characters(exclude_categories=["Cs"]))
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
records = st.dictionaries(texts, values, max_size=4)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Draw a tensor of any of the types that weights and states have, maybe empty, without a dimension or turned."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    numbers = 100 * torch.randn(shape, generator=generator, dtype=torch.float64)
    if not dtype.is_floating_point:
        numbers = numbers.abs()
    tensor = numbers.to(dtype)
    return tensor.transpose(0, -1) if tensor.dim() and draw(st.booleans()) else tensor


named = st.dictionaries(texts.filter(lambda name: name != "__metadata__"), tensors(), max_size=4)


def same(ours: Weights, theirs: Weights) -> bool:
    return ours.keys() == theirs.keys() and all(
        ours[name].dtype == tensor.dtype and torch.equal(ours[name], tensor)
        for name, tensor in theirs.items()
    )


@given(named, records)
def test_what_is_encoded_comes_back(weights: Weights, facts: dict[str, object]) -> None:
    data = encode(weights, facts)
    decoded = decode(data, like=weights)
    assert same(decoded.tensors, weights)
    assert list(decoded.tensors) == list(weights)
    assert decoded.facts.facts == facts
    assert same(decode(data).tensors, weights)
    assert decoded.digest == digest_of(data)


@given(named, st.randoms())
def test_a_digest_knows_content_and_no_order(weights: Weights, random: object) -> None:
    names = list(weights)
    random.shuffle(names)  # type: ignore[attr-defined]
    assert digest({name: weights[name].clone() for name in names}, "a") == digest(weights, "a")
    assert digest(weights, "a") != digest(weights, "b")
    assert digest({**weights, "one more": torch.zeros(0)}, "a") != digest(weights, "a")


def test_equal_numbers_under_another_name_type_or_shape_have_another_digest() -> None:
    zeros = {"w": torch.zeros(2, 3)}
    others = [{"v": torch.zeros(2, 3)}, {"w": torch.zeros(3, 2)}, {"w": torch.zeros(2, 3, dtype=torch.int32)}]
    assert len({digest(zeros), *(digest(other) for other in others)}) == 4


def test_gradients_and_shared_memory_stay_behind() -> None:
    base = torch.arange(6.0).reshape(2, 3).requires_grad_()
    decoded = decode(encode({"all": base, "row": base[0], "turned": base.T}, {}))
    assert same(decoded.tensors, {"all": base.detach(), "row": base[0].detach(), "turned": base.T.detach()})
    assert not any(tensor.requires_grad for tensor in decoded.tensors.values())


def test_what_is_read_begins_where_tensors_do_that_are_made_here() -> None:
    """Products round by where operands begin, so that a resumed run would not end with the same bits."""
    weights = {str(size): torch.rand(size) for size in range(1, 40)}
    assert all(tensor.data_ptr() % 64 == 0 for tensor in decode(encode(weights, {})).tensors.values())


WEIGHTS = {"w": torch.tensor([[1.0, -2.0], [3.0, 4.5]]), "n": torch.tensor(3)}
FACTS: dict[str, object] = {"round": 12, "who": "a ü", "parts": [0.5, None]}
WHOLE = encode(WEIGHTS, FACTS)


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_a_changed_byte_is_noticed_or_changes_nothing(position: int, mask: int) -> None:
    damaged = bytearray(WHOLE)
    damaged[position] ^= mask
    try:
        decoded = decode(bytes(damaged))
    except MessageError:
        return
    assert same(
        decoded.tensors, WEIGHTS
    )  # another kind of space in the header, or ü spelled with other letters
    assert decoded.facts.facts == FACTS


@given(st.integers(0, len(WHOLE) - 1))
def test_bytes_that_are_cut_short_are_refused(length: int) -> None:
    with pytest.raises(MessageError):
        decode(WHOLE[:length])


@given(st.binary(max_size=200))
@example(b"")
@example(struct.pack("<Q", 2**64 - 1))
@example(struct.pack("<Q", 0))
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(MessageError):
        decode(data)


def framed(header: bytes, content: bytes = b"") -> bytes:
    """Put a header where safetensors has it."""
    return struct.pack("<Q", len(header)) + header + content


@given(values | st.fixed_dictionaries({"__metadata__": values}), st.binary(max_size=16))
def test_a_header_of_anything_is_refused(header: Json, content: bytes) -> None:
    with pytest.raises(MessageError):
        decode(framed(json.dumps(header).encode(), content))


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,  # deeper than Python goes
        b'{"__metadata__":' + b"[" * 100_000,
        b'{"__metadata__":null}',
        b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',  # points beyond the end
        b'{"w":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,8]}}',
    ],
    ids=["deep", "deep metadata", "no metadata", "beyond the end", "huge shape"],
)
def test_a_hostile_header_is_refused(header: bytes) -> None:
    with pytest.raises(MessageError):
        decode(framed(header))


def sealed(facts: str, weights: Weights | None = None, **metadata: str) -> bytes:
    """Encode facts that need be no JSON, with a digest that holds: a sender can always make one."""
    kept = weights or {}
    return save(kept, metadata={"format": _FORMAT, "facts": facts, "digest": digest(kept, facts), **metadata})


@pytest.mark.parametrize(
    "facts",
    ["", "{", "null", "5", "[]", '"a"', "[" * 100_000, '{"a": ' + "1" * 5000 + "}", "{'a': 1}"],
    ids=["nothing", "half", "null", "number", "list", "text", "deep", "long number", "python"],
)
def test_facts_that_are_none_are_refused_whatever_their_digest(facts: str) -> None:
    with pytest.raises(MessageError):
        decode(sealed(facts))


def test_more_facts_than_are_read_are_refused() -> None:
    room = _FACTS - len('{"a": ""}')
    assert len(decode(encode({}, {"a": "x" * room})).facts.text("a")) == room
    with pytest.raises(MessageError, match="characters"):
        decode(encode({}, {"a": "x" * (room + 1)}))


@pytest.mark.parametrize("version", ["pflego 1", "pt", ""])
def test_another_format_is_refused(version: str) -> None:
    with pytest.raises(MessageError, match="this version"):
        decode(sealed("{}", format=version))


def test_another_digest_is_refused() -> None:
    with pytest.raises(MessageError, match="digest"):
        decode(sealed("{}", digest=digest({}, "{ }")))
    with pytest.raises(MessageError, match="digest"):
        decode(save({}, metadata={"format": _FORMAT, "facts": "{}"}))


@pytest.mark.parametrize("like", [{}, WEIGHTS], ids=["facts alone", "weights"])
def test_more_bytes_than_can_be_meant_are_refused_unread(like: Weights) -> None:
    most = nbytes(like) + _HEADER * (len(like) + 1) + _FACTS
    with pytest.raises(MessageError, match=f"{most + 1} bytes, and at most {most}"):
        decode(bytes(most + 1), like=like)
    with pytest.raises(MessageError, match="cannot be read"):
        decode(bytes(most), like=like)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"w": torch.ones(2, 2)}, "called w, not w, n"),
        ({**WEIGHTS, "v": torch.ones(1)}, "called"),
        ({}, "called nothing, not w, n"),
        ({**WEIGHTS, "w": torch.ones(4)}, r"its w is torch.float32 of shape \(4,\)"),
        ({**WEIGHTS, "w": torch.ones(2, 2, dtype=torch.float64)}, r"not torch.float32 of shape \(2, 2\)"),
        ({**WEIGHTS, "n": torch.tensor([3])}, r"its n is torch.int64 of shape \(1,\), not .* \(\)"),
        ({**WEIGHTS, "w": torch.tensor([[1.0, nan], [0.0, 0.0]])}, "its w holds an infinity or a NaN"),
        ({**WEIGHTS, "w": torch.tensor([[inf, -inf], [0.0, 0.0]])}, "its w holds an infinity or a NaN"),
    ],
)
def test_tensors_that_were_not_agreed_on_are_refused(wrong: Weights, reason: str) -> None:
    data = encode(wrong, {})
    with pytest.raises(MessageError, match=reason):
        decode(data, like=WEIGHTS)
    with pytest.raises(MessageError, match=reason):
        decode(data).hold_to(WEIGHTS)


def test_large_numbers_are_finite_although_their_sum_is_not() -> None:
    large = {"w": torch.full((4,), 3e38)}
    assert same(decode(encode(large, {}), like=large).tensors, large)


def test_tensors_come_in_the_order_that_was_agreed_on() -> None:
    like = {name: torch.zeros(2) for name in "dacb"}
    assert list(decode(encode({name: like[name] for name in "abcd"}, {}), like=like).tensors) == list("dacb")


def test_a_message_that_is_refused_is_the_users_matter() -> None:
    assert issubclass(MessageError, UserError)


READER = Reader(
    {
        "text": "a", "whole": 3, "real": 2.5, "truth": True, "none": None, "list": [1, 2], "mixed": [1, True],
        "inner": {"deep": 1}, "negative": -1, "nan": nan, "inf": inf, "huge": 10**400, "beyond": 2**53 + 1,
    }
)  # fmt: skip


def test_facts_are_taken_for_what_they_are() -> None:
    assert READER.text("text") == "a"
    assert READER.client("text") == "a"
    assert READER.client("whole") == 3
    assert READER.whole("whole", least=3) == 3
    assert (READER.finite("whole"), READER.finite("real", least=2.5, most=2.5)) == (3.0, 2.5)
    assert isinstance(READER.finite("whole"), float)
    assert READER.choice("text", {"a", "b"}) == "a"
    assert READER.numbers("list", least=1) == (1, 2)
    assert READER.inner("inner").whole("deep", least=0) == 1
    assert READER.one("truth", (bool,)) is True


@pytest.mark.parametrize(
    "take",
    [
        lambda r: r.text("absent"),
        lambda r: r.text("whole"),
        lambda r: r.client("real"),
        lambda r: r.client("truth"),
        lambda r: r.client("none"),
        lambda r: r.whole("real", least=0),
        lambda r: r.whole("truth", least=0),
        lambda r: r.whole("negative", least=0),
        lambda r: r.whole("beyond", least=0),
        lambda r: r.whole("huge", least=0),
        lambda r: r.finite("nan"),
        lambda r: r.finite("inf"),
        lambda r: r.finite("huge"),
        lambda r: r.finite("beyond"),
        lambda r: r.finite("truth"),
        lambda r: r.finite("text"),
        lambda r: r.finite("real", least=2.6),
        lambda r: r.finite("real", most=2.4),
        lambda r: r.choice("text", ["b"]),
        lambda r: r.choice("whole", ["3"]),
        lambda r: r.numbers("mixed", least=0),
        lambda r: r.numbers("list", least=2),
        lambda r: r.numbers("text", least=0),
        lambda r: r.inner("list"),
        lambda r: r.inner("absent"),
        lambda r: r.one("truth", (int,)),
    ],
)
def test_facts_that_are_something_else_are_refused_in_a_short_line(take: Callable[[Reader], object]) -> None:
    with pytest.raises(MessageError) as refusal:
        take(READER)
    assert len(str(refusal.value)) < 120


@given(st.integers(), st.integers(-5, 5))
def test_whole_numbers_are_those_that_everybody_can_hold(value: int, least: int) -> None:
    read = Reader({"n": value})
    if least <= value <= 2**53:
        assert read.whole("n", least=least) == value
    else:
        with pytest.raises(MessageError):
            read.whole("n", least=least)


@given(values)
def test_a_record_is_one(value: Json) -> None:
    assume(not isinstance(value, dict))
    with pytest.raises(MessageError):
        Reader(value)


def test_of_many_names_a_few_are_said() -> None:
    assert some(["a", "b", "c", "d"]) == "a, b, c, d"
    assert some("abcde") == "a, b, c, d, ..."
    assert some([]) == "nothing"
    assert len(some(["x" * 1000] * 9)) < 200
