"""Values, texts and files of a wrong kind: what programs are given when something went wrong before them."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from pflego.errors import UserError

_LONG = os.environ.get("PFLEGO_FUZZ")  # examples per test; `make fuzz` asks for many, new ones each time


def fuzzed(examples: int = 40) -> settings:
    """Give the settings of a property that is tried on a few examples here, and on many by `make fuzz`."""
    return settings(
        max_examples=int(_LONG) if _LONG else examples,
        derandomize=_LONG is None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


def tried(action: Callable[[], object]) -> None:
    """Do something; it may succeed or be refused, and anything else is a failure of the test."""
    with warnings.catch_warnings(), suppress(UserError):
        warnings.simplefilter("ignore")
        action()


VALUES: st.SearchStrategy[object] = st.sampled_from(
    [
        None,
        True,
        0,
        3,
        -1,
        10**400,
        1.5,
        float("nan"),
        float("inf"),
        1e39,
        "x",
        "",
        "a\0b",
        "\ud800",
        b"x",
        [],
        [1],
        [[]],
        {},
        {"a": 1},
        (),
        {1},
        int,
        object(),
        np.int64(3),
        np.float32(0.5),
        np.array([1]),
        np.array([[0.5, np.nan]]),
        np.array(["x"], dtype=object),
    ]
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


@st.composite
def mutated_json(draw: st.DrawFn, text: str) -> str:
    """Replace one value of a JSON text, wherever it is, or leave it out."""
    content = json.loads(text)
    place, here = None, content
    while isinstance(here, dict | list) and here and (place is None or draw(st.integers(0, 3))):
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        place = (here, draw(st.sampled_from(keys)))
        here = here[place[1]]
    assert place is not None
    if draw(st.integers(0, 4)):
        place[0][place[1]] = draw(JSON)
    else:
        del place[0][place[1]]
    return json.dumps(content)


@st.composite
def mutated_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """Damage a file: other bytes somewhere, an end that is missing, or more than there was."""
    start = draw(st.integers(0, len(content)))
    match draw(st.sampled_from(["replace", "cut", "insert"])):
        case "cut":
            return content[:start]
        case "insert":
            return content[:start] + draw(st.binary(min_size=1, max_size=8)) + content[start:]
    other = draw(st.binary(min_size=1, max_size=8))
    return content[:start] + other + content[start + len(other) :]
