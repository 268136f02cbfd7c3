from __future__ import annotations

from collections.abc import Mapping

import pytest

import pflego
from pflego.algorithms.registry import methods
from pflego.tuning import Range, Space
from pflego.tuning.space import holds, read, resolve, usual, words


@pytest.mark.parametrize(
    ("text", "name", "space"),
    [
        ("server_lr=1e-4:1e-1:log", "server_lr", Range(1e-4, 1e-1, log=True)),
        ("mu = 0 : 0.5", "mu", Range(0, 0.5)),
        ("steps=5:100", "steps", Range(5, 100)),
        ("steps=5,20,50,20", "steps", [5, 20, 50]),
        ("client-lr=auto, 0.01,0.1", "client_lr", ["auto", 0.01, 0.1]),
        ("common_head=true,False", "common_head", [True, False]),
        ("participation=5,binomial:0.2", "participation", [5, "binomial:0.2"]),
    ],
)
def test_what_to_try_is_read_as_it_is_written(text: str, name: str, space: Space) -> None:
    assert read(text) == (name, space)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("steps", "does not say what to try"),
        ("=1:2", "does not say what to try"),
        ("steps=5", "nothing to choose from: give low:high"),
        ("steps=5,5", "nothing to choose from"),
        ("steps=", "nothing to choose from"),
        ("steps=1:2:3", "nothing to choose from"),
        ("participation=binomial:0.2", "nothing to choose from"),
        ("server_lr=0.1:0.01", "from a number to a larger one, not from 0.1 to 0.01"),
        ("server_lr=0:1:log", "begins above 0"),
        ("server_lr=0.1:inf", "from a number to a larger one"),
    ],
)
def test_what_cannot_be_tried_is_refused(text: str, reason: str) -> None:
    with pytest.raises(pflego.UserError, match=reason):
        read(text)


def test_whole_numbers_stay_whole_where_they_must_be() -> None:
    spaces = resolve(
        {"algorithm": "fedprox"},
        {"steps": Range(5, 100, log=True), "mu": Range(0, 1), "participation": Range(2, 9)},
    )
    assert {name: space.whole for name, space in spaces.items() if isinstance(space, Range)} == {
        "steps": True,
        "mu": False,
        "participation": True,
    }


@pytest.mark.parametrize(
    ("over", "reason"),
    [
        ({"stepps": [1, 2]}, "unknown setting 'stepps': did you mean 'steps'"),
        ({"mu": Range(0.1, 1)}, "pflego has no setting 'mu'"),
        ({"rounds": [10, 20]}, "rounds must be the same in all trials"),
        ({"seed": Range(0, 9)}, "seed must be the same in all trials"),
        ({"steps": Range(0, 5)}, "steps must be a whole number above 0, not 0"),
        ({"steps": Range(0.5, 5)}, "steps must be a whole number above 0, not 0.5"),
        (
            {"client_lr": ["auto", "fast"]},
            "client_lr must be a number above 0 or centred or auto, not 'fast'",
        ),
        ({"head_init": ["zeros"]}, "nothing to choose from"),
        ({"head_init": "zeros"}, "nothing to choose from"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(over: Mapping[str, Space], reason: str) -> None:
    with pytest.raises(pflego.UserError, match=reason):
        resolve({}, over)


def test_a_value_that_goes_with_some_of_the_others_is_not_refused() -> None:
    over: dict[str, Space] = {"steps": [2, 20], "body_steps": [1, 5]}  # fedrep's body_steps are 5 by default
    assert resolve({"algorithm": "fedrep"}, over) == over
    with pytest.raises(pflego.UserError, match="body_steps must be at most steps"):
        resolve({"algorithm": "fedrep"}, {"steps": [2, 20]})


def test_every_method_has_something_to_look_for_around_its_defaults() -> None:
    names = {name: list(usual(kind())) for name, kind in methods().items()}
    assert names == {
        "pflego": ["client_lr", "server_lr"],
        "fedavg": ["client_lr"],
        "fedprox": ["client_lr", "mu"],
        "feddbe": ["client_lr", "kappa"],
        "moon": ["client_lr", "mu"],
        "fedproto": ["client_lr", "mu"],
        "fedpac": ["client_lr", "mu"],
        "fedper": ["client_lr"],
        "fedrep": ["client_lr"],
        "fedbabu": ["client_lr"],
        "fedbn": ["client_lr"],
        "ditto": ["client_lr", "mu"],
        "fedrecon": ["client_lr", "server_lr"],
        "feddane": ["client_lr", "mu"],
        "fednova": ["client_lr"],
        "fedopt": ["client_lr", "server_lr"],
        "fedsgd": ["client_lr"],
        "perfedavg": ["client_lr", "inner_lr"],
        "pfedme": ["client_lr", "mu"],
        "uga": ["client_lr", "server_lr"],
        "local": ["client_lr"],
        "scaffold": ["client_lr"],
        "feddyn": ["client_lr", "mu"],
        "apfl": ["client_lr"],
        "lgfedavg": ["client_lr"],
        "fedrod": ["client_lr"],
        "fedala": ["client_lr"],
    }
    assert usual(pflego.PFLEGO(client_lr=0.5, common_head=True)) == {
        "client_lr": Range(0.005, 50.0, log=True),
        "server_lr": Range(2e-05, 0.2, log=True),
        "head_decay": Range(0.001, 10.0, log=True),
    }


def test_a_space_knows_what_it_holds_and_how_it_is_spelled() -> None:
    assert holds(Range(1, 5), 5)
    assert not holds(Range(1, 5), "auto")
    assert holds(["auto", 0.1], "auto")
    for text in ("1e-05:0.1:log", "5:100", "auto,0.01", "1,2"):
        _, space = read(f"x={text}")
        assert isinstance(space, Range | list)
        assert words(space) == text
