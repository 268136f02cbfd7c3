"""Arguments of a wrong kind, wherever Python may give them: taken, or refused in one line."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import pflego
from pflego.algorithms.registry import methods
from pflego.federation.draws import check
from pflego.federation.participation import participation_of
from pflego.runs.run import Run
from tests.support.odd import VALUES, fuzzed, tried

X, Y = np.arange(8, dtype=np.float32).reshape(4, 2), np.array([0, 1, 0, 1])

pytestmark = pytest.mark.slow  # hundreds of small calls


@pytest.fixture(scope="module", autouse=True)
def _elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Some values are taken for paths."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("api"))
    yield
    os.chdir(before)


@pytest.fixture(scope="module")
def run() -> Run:
    return pflego.train(_federation(), _model(), pflego.PFLEGO(steps=1), rounds=1, progress=False)


def _federation() -> pflego.Federation:
    return pflego.Federation([pflego.Client(name, X, Y, X, Y) for name in ("a", "b")])


def _model() -> pflego.Model:
    return pflego.Model(nn.Linear(2, 2), features=2)


def _options(function: object, *without: str) -> st.SearchStrategy[str]:
    names = inspect.signature(function).parameters  # type: ignore[arg-type]
    return st.sampled_from([name for name in names if name not in without])


@fuzzed(250)
@given(_options(pflego.train, "progress"), VALUES)
def test_train(name: str, value: object) -> None:
    rest = {"federation": _federation(), "model": _model(), "algorithm": pflego.PFLEGO(steps=1), "rounds": 1}
    if name != "rounds" or not isinstance(value, int) or value < 10:
        tried(lambda: pflego.train(**{**rest, "progress": False, name: value}))  # type: ignore[arg-type]


@fuzzed(250)
@given(_options(pflego.load), VALUES)
def test_load(name: str, value: object) -> None:
    tried(lambda: pflego.load(**{"data": "digits", "clients": 3, name: value}))  # type: ignore[arg-type]


@fuzzed(120)
@given(_options(pflego.load, "data"), VALUES)
def test_load_of_a_function(name: str, value: object) -> None:
    options = {"ids": ["a", "b"], name: value}
    tried(lambda: pflego.load(lambda _: (X, Y), **options))  # type: ignore[arg-type]


@fuzzed(120)
@given(_options(pflego.Client), VALUES)
def test_a_client(name: str, value: object) -> None:
    parts = {"id": "a", "x_train": X, "y_train": Y, "x_test": X, "y_test": Y, name: value}
    tried(lambda: pflego.Federation([pflego.Client(**parts)]))  # type: ignore[arg-type]


@fuzzed(120)
@given(_options(pflego.Federation.lazy, "source", "schema"), VALUES)
def test_a_lazy_federation(name: str, value: object) -> None:
    client = pflego.Client("a", X, Y)
    parts = {"ids": ["a"], "load": lambda _: client, "sizes": [4], "classes": [0, 1], name: value}
    tried(lambda: pflego.Federation.lazy(**parts)[0])  # type: ignore[arg-type]


@fuzzed(60)
@given(VALUES)
def test_a_federation_of_anything(value: object) -> None:
    client = pflego.Client("a", X, Y)
    for members in (value, [value], [client, value]):
        tried(lambda members=members: pflego.Federation(members))  # type: ignore[misc]


@fuzzed(100)
@given(VALUES)
def test_what_is_asked_of_a_run(run: Run, value: object) -> None:
    tried(lambda: run.federation.client(value))  # type: ignore[arg-type]
    tried(lambda: run.personal_model(value))  # type: ignore[arg-type]
    tried(lambda: run.export(value, "model", formats=["safetensors"]))  # type: ignore[arg-type]
    tried(lambda: run.export("a", value, formats=["safetensors"]))  # type: ignore[arg-type]
    tried(lambda: run.export("a", "model", formats=value))  # type: ignore[arg-type]
    tried(lambda: pflego.open_run(value))  # type: ignore[arg-type]
    tried(lambda: pflego.load_model(value))  # type: ignore[arg-type]
    tried(lambda: run.states[value])  # type: ignore[index]


@fuzzed(60)
@given(VALUES)
def test_models_and_advice(value: object) -> None:
    tried(lambda: pflego.models.build(value, (2,)))  # type: ignore[arg-type]
    tried(lambda: pflego.models.build("mlp", value))  # type: ignore[arg-type]
    tried(lambda: pflego.Model(value, features=2))  # type: ignore[arg-type]
    tried(lambda: pflego.Model(nn.Linear(2, 2), features=value))  # type: ignore[arg-type]
    tried(lambda: pflego.advise(value))  # type: ignore[arg-type]
    tried(lambda: check(participation_of(value), range(3)))


_METHODS = st.sampled_from(list(methods().values()))


@fuzzed(250)
@given(_METHODS.flatmap(lambda kind: st.tuples(st.just(kind), _options(kind))), VALUES)
def test_a_method(which: tuple[type[pflego.Algorithm], str], value: object) -> None:
    kind, name = which
    tried(lambda: kind(**{name: value}))


@fuzzed(60)
@given(VALUES, VALUES)
def test_functions_that_give_anything(first: object, second: object) -> None:
    gives: list[Callable[..., Any]] = [
        lambda *_: first,
        lambda *_: (first, second),
        lambda *_: (X, Y, first, second),
    ]
    for function in gives:
        tried(lambda function=function: pflego.load(function, ids=["a"]))  # type: ignore[misc]
        lazy = partial(pflego.Federation.lazy, ["a"], function, sizes=[4])
        tried(lambda lazy=lazy: lazy(classes=[0, 1])[0])  # type: ignore[misc]
    train = partial(pflego.train, _federation(), _model(), rounds=1, progress=False)
    tried(lambda: train(pflego.PFLEGO(steps=1), engine=gives[0]))
    tried(lambda: train(pflego.PFLEGO(steps=1, head_init=gives[0])))
    tried(lambda: train(pflego.PFLEGO(steps=1), transforms=[gives[0]]))
