"""What a site is shown before it joins is what leaves it afterwards."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from flwr.app import Context, Message
from typer.testing import CliRunner

import pflego
from pflego.cli.deploy import app as deploy
from pflego.deploy.flower.client import app
from pflego.deploy.folder import write_app
from pflego.deploy.inspection import Line, inspect
from pflego.weights import Weights
from tests.deploy.flower.test_equality import state
from tests.support.grid import opened
from tests.support.sites import CONFIG, NAMES, sites, train

METHODS: dict[str, dict[str, float | str | None]] = {
    "pflego": {},
    "fedavg": {},
    "local": {},
    "tests.support.guest:Shrinking": {"steps": None},
    "tests.support.guest:ShrinkingTwice": {"steps": None},
    "tests.support.guest:ShrinkingAsTold": {"steps": None},
}


def lines(tensors: Weights) -> set[Line]:
    return {
        Line(name, str(t.dtype).removeprefix("torch."), tuple(t.shape), t.nbytes)
        for name, t in tensors.items()
    }


@pytest.mark.parametrize("method", METHODS)
def test_it_is_what_a_round_really_sends_and_keeps(method: str, tmp_path: Path) -> None:
    given = {**CONFIG, "rounds": 1, "algorithm": method, **METHODS[method]}
    write_app(tmp_path / "app", {name: value for name, value in given.items() if value is not None})
    nodes = sites(tmp_path, NAMES)
    node = nodes[999]  # with all classes of a federation of its own: what is shared has its size
    shown = inspect(tmp_path / "app", " ".join(f'{name}="{value}"' for name, value in node.config.items()))
    assert not Path(str(node.config["state"])).exists()
    received, sent, figures = list[Weights](), list[Weights](), set[str]()

    def watched(message: Message, context: Context) -> Message:
        reply = app(message, context)
        if message.metadata.message_type == "train":
            tensors, facts = opened(reply.content)
            received.append(opened(message.content)[0])
            sent.append(tensors)
            figures.update(facts["metrics"], {"seconds"})
        return reply

    node.answer = watched
    alone = {"min-clients": 1, "algorithm": method, "rounds": 1, **METHODS[method]}
    train({999: node}, tmp_path / "server", **alone)
    assert len(shown.message) == sum(len(tensors) for tensors in sent)
    assert set(shown.message) == {line for tensors in sent for line in lines(tensors)}
    assert len(shown.received) == sum(len(tensors) for tensors in received)
    assert set(shown.received) == {line for tensors in received for line in lines(tensors)}
    assert set(shown.metrics) == figures
    assert set(shown.kept) == lines(state(tmp_path, NAMES[1]))


@pytest.mark.parametrize("what", ["algorithm", "model"])
def test_looking_at_an_app_runs_nothing_of_it(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = sites(tmp_path, NAMES)[999]
    write_app(tmp_path / "app", {})
    file = tmp_path / "app" / "pyproject.toml"
    file.write_text(re.sub(f'(?m)^{what} = ".*"', f'{what} = "sent_{what}:Trap"', file.read_text()))
    (tmp_path / f"sent_{what}.py").write_text("from pathlib import Path\nPath('sprung').touch()\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pflego.SettingError, match="has not allowed it"):
        inspect(tmp_path / "app", " ".join(f'{name}="{value}"' for name, value in node.config.items()))
    assert not Path("sprung").exists()


def test_with_secure_sums_it_says_what_the_server_sees(tmp_path: Path) -> None:
    write_app(tmp_path / "app", {**CONFIG, "secure": True, "secure-clip": 4.0, "secure-least": 7})
    node = sites(tmp_path, NAMES)[999]
    config = " ".join(f'{name}="{value}"' for name, value in node.config.items())
    shown = inspect(tmp_path / "app", config)
    assert shown.secure.on
    assert "seconds" not in shown.metrics  # nobody hears how long this client took
    assert "rate_over_bound" not in shown.metrics  # the largest of all is in no sum
    assert {"loss", "test", "clipped"} <= set(shown.metrics)
    told = CliRunner().invoke(deploy, ["inspect", str(tmp_path / "app"), "--node-config", config])
    assert told.exit_code == 0, told.output
    assert "sums alone" in told.output
    assert "fewer than 7" in told.output


def test_with_secure_sums_and_privacy_it_says_that_no_sum_is_exact(tmp_path: Path) -> None:
    given = {"secure": True, "privacy": "clip=0.5,noise=2", "weighting": "equal", "classes": "0-4"}
    write_app(tmp_path / "app", {**CONFIG, **given})
    node = sites(tmp_path, NAMES)[999]
    config = " ".join(f'{name}="{value}"' for name, value in node.config.items())
    shown = inspect(tmp_path / "app", config)
    assert shown.metrics == []
    assert shown.secure.clip == 0.5
    told = CliRunner().invoke(deploy, ["inspect", str(tmp_path / "app"), "--node-config", config])
    assert told.exit_code == 0, told.output
    for words in ("and nothing else", "sums alone", "a norm of 0.5", "part of the noise", "no exact sum"):
        assert words in told.output, words
    assert "the server itself sees the message as it is" not in told.output
