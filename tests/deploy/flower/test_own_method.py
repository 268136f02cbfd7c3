"""A method that somebody brings along plays its rounds at sites like any other."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Message

import pflego
from pflego.deploy.flower.app_config import AppConfig
from pflego.deploy.flower.client import app
from pflego.deploy.flower.site_config import Assignment
from tests.deploy.flower.test_equality import assert_close, assert_same_history, state
from tests.support import guest
from tests.support.grid import opened
from tests.support.sites import NAMES, SHAPE, arrays, federation, sites, train

RATE = 0.25
ROUNDS = 3
SIZES = np.array([len(arrays(position)["y_train"]) for position in range(len(NAMES))], dtype=np.float64)
CLASSES = np.array([len(np.unique(arrays(position)["y_train"])) for position in range(len(NAMES))])
TIMES = np.array([len(name) for name in NAMES], dtype=np.float64)


def settings(kind: type[guest.Shrinking]) -> dict[str, float | str | None]:
    name = f"tests.support.guest:{kind.__name__}"
    return {"algorithm": name, "shrink-rate": RATE, "rounds": ROUNDS, "steps": None}


def on_flower(kind: type[guest.Shrinking], folder: Path) -> pflego.Run:
    return train(sites(folder), folder / "server", **settings(kind))


def in_one_process(kind: type[guest.Shrinking]) -> pflego.Run:
    model, method = pflego.models.build("mlp", SHAPE, seed=5), kind(shrink_rate=RATE)
    return pflego.train(federation(), model, method, rounds=ROUNDS, seed=5, evaluate_every=2, device="cpu")


@pytest.mark.parametrize(
    ("kind", "times", "exchanges"),
    [
        (guest.Shrinking, np.ones(len(NAMES)), 1),
        (guest.ShrinkingTwice, np.ones(len(NAMES)), 2),
        (guest.ShrinkingAsTold, TIMES, 1),
    ],
)
def test_its_rounds_weights_and_metrics_are_as_worked_out(
    kind: type[guest.Shrinking], times: np.ndarray, exchanges: int, tmp_path: Path
) -> None:
    run = on_flower(kind, tmp_path)
    shares = RATE * SIZES / 100 * times  # what each client takes away
    importance = SIZES / SIZES.sum()
    first = {n: w.double().numpy() for n, w in pflego.models.build("mlp", SHAPE, seed=5).weights().items()}
    size = np.sqrt(sum((w**2).sum() for w in first.values()))
    remain = 1 - importance @ shares  # after one exchange
    for number, row in enumerate(run.history):
        before = size * remain ** (exchanges * number + exchanges - 1)  # of the last exchange
        assert row["drift"] == pytest.approx(before * (importance @ shares), rel=1e-5)
        assert row["visits"] == len(NAMES)
        assert row["most_samples"] == SIZES.max()
        assert row["loss"] == pytest.approx(importance @ np.log(CLASSES), rel=1e-6)
    for name, weight in first.items():
        expected = weight * remain ** (exchanges * ROUNDS)
        np.testing.assert_allclose(run.shared[name].numpy(), expected, rtol=1e-5, atol=1e-7)
    for name in NAMES:
        assert bool((state(tmp_path, name)["head"] == exchanges * ROUNDS).all())


@pytest.mark.parametrize("kind", [guest.Shrinking, guest.ShrinkingTwice, guest.ShrinkingAsTold])
def test_it_is_the_same_in_one_process(kind: type[guest.Shrinking], tmp_path: Path) -> None:
    ours, theirs = on_flower(kind, tmp_path), in_one_process(kind)
    assert_close(ours.shared, theirs.shared)
    assert_same_history(ours, theirs)
    for name in NAMES:
        assert_close(state(tmp_path, name), theirs.states[name])


def test_its_metrics_are_in_the_file_and_in_the_run_that_is_opened_again(tmp_path: Path) -> None:
    run = on_flower(guest.Shrinking, tmp_path)
    again = pflego.open_run(tmp_path / "server", trust=True)
    assert again.algorithm == guest.Shrinking(shrink_rate=RATE)
    assert [row["drift"] for row in again.history] == [row["drift"] for row in run.history]


class PowerCut(BaseException):
    """End the server's process."""


def test_a_server_that_is_killed_between_two_exchanges_goes_on_exactly(tmp_path: Path) -> None:
    nodes = sites(tmp_path)

    def cut(message: Message, context: Context) -> Message:
        reply = app(message, context)
        if message.metadata.message_type == "train":
            now = opened(message.content)[1]["round"]
            if (now["number"], now["exchange"]) == (2, 1):  # some have done both, some the first alone
                raise PowerCut
        return reply

    nodes[998].answer = cut
    with pytest.raises(PowerCut):
        train(nodes, tmp_path / "server", **settings(guest.ShrinkingTwice))
    nodes[998].answer = app
    ours = train(nodes, tmp_path / "server", **settings(guest.ShrinkingTwice))
    theirs = in_one_process(guest.ShrinkingTwice)
    assert_close(ours.shared, theirs.shared)
    for name in NAMES:
        assert_close(state(tmp_path, name), theirs.states[name])


def test_its_settings_may_be_called_like_others(tmp_path: Path) -> None:
    """Server and sites read the same configuration, and must come to the same method."""
    given = {"algorithm": "tests.support.guest:Namesake", "seed": 5, "out": str(tmp_path)}
    for own, seed in [({}, 3), ({"method.seed": 7}, 7)]:
        for config in ({**given, **own}, {**own, **given}):
            server, site = AppConfig.read(config), Assignment.read(config)
            assert server.algorithm == site.algorithm == guest.Namesake(seed=seed)
            assert server.seed == site.seed == 5
    both = AppConfig.read(
        {**given, "weighting": "equal", "method.weighting": "mine", "wait": 9.0, "method.wait": 2.0}
    )
    assert both.algorithm == both.assignment.algorithm == guest.Namesake(weighting="mine", wait=2.0)
    assert both.settings.value("weighting") == "equal"
    assert both.deployment.wait == 9.0


@pytest.mark.parametrize("name", ["weighting", "wait"])
def test_a_name_that_sites_would_take_for_the_methods_is_refused(name: str) -> None:
    given = {"algorithm": "tests.support.guest:Namesake", "weighting": "equal", "wait": 9.0}
    with pytest.raises(pflego.SettingError, match=rf"method\.{name}"):
        AppConfig.read({"algorithm": given["algorithm"], name: given[name]})


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("tests.support.guest:Nobody", "Nobody"),
        ("tests.support.nowhere:Shrinking", "nowhere"),
        ("tests.support.sites:NAMES", "no class"),
    ],
)
def test_a_method_that_is_not_there_is_refused_by_server_and_site(name: str, why: str) -> None:
    for read in (AppConfig.read, Assignment.read):
        with pytest.raises(pflego.SettingError, match=why):
            read({"algorithm": name})


def test_the_method_of_the_documentation_plays_its_rounds_at_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "your-own-algorithm.md").read_text()
    code = page.partition("Path(\"majority.py\").write_text('''\n")[2].partition("''')")[0]
    assert "class Majority" in code
    (tmp_path / "majority.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "majority", raising=False)
    nodes = sites(tmp_path)
    for node in nodes.values():
        node.config["allow"] = "majority:Majority"
    run = train(nodes, tmp_path / "server", algorithm="majority:Majority", rounds=3)
    local = pflego.train(
        federation(), pflego.models.build("mlp", SHAPE, seed=5), type(run.algorithm)(steps=run.algorithm.steps),  # type: ignore[attr-defined, call-arg]
        rounds=3, seed=5, evaluate_every=2, device="cpu",
    )  # fmt: skip
    assert_close(run.shared, local.shared)
    assert [row["silent"] for row in run.history] == [row["silent"] for row in local.history]
    sys.modules.pop("majority", None)
