"""Frozen and pretrained backbones by settings: on the command line, in a run that goes on, at a site on Flower."""

from __future__ import annotations

import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import pflego
from pflego.cli import app
from pflego.codec import MessageError, decode, encode
from pflego.deploy.flower.desk import Desk
from pflego.deploy.flower.facts import Common, Facts
from pflego.deploy.flower.site_config import Site
from pflego.errors import UserError
from pflego.settings.experiment import Experiment

QUICK = {"clients": 4, "classes_per_client": 3, "rounds": 2, "steps": 3}


def base(path: Path, seed: int) -> str:
    save_file(pflego.models.build("mlp", (64,), seed=seed).backbone.state_dict(), path)
    return str(path)


def test_a_run_with_a_frozen_part_from_a_file_goes_on_and_refuses_another_file(tmp_path: Path) -> None:
    file = tmp_path / "base.safetensors"
    settings = {
        **QUICK,
        "model": "mlp",
        "pretrained": base(file, 1),
        "frozen": "1.weight",
        "out": str(tmp_path / "a"),
    }
    run = Experiment.build(settings).train()
    assert set(run.shared) == {"1.bias"}
    assert torch.equal(
        run.personal_model(0).backbone.get_parameter("1.weight"),
        pflego.models.build("mlp", (64,), seed=1).backbone.get_parameter("1.weight"),
    )
    Experiment.build({**settings, "rounds": 3}).train(resume=True)
    assert len(pflego.open_run(tmp_path / "a").history) == 3
    base(file, 2)
    with pytest.raises(UserError):
        Experiment.build({**settings, "rounds": 4}).train(resume=True)
    with pytest.raises(UserError):
        pflego.open_run(tmp_path / "a")


def test_the_command_line_writes_down_what_the_model_was_made_of(tmp_path: Path) -> None:
    options = [
        "--clients",
        "5",
        "--rounds",
        "1",
        "--frozen",
        "all",
        "--trunk",
        "always",
        "--out",
        str(tmp_path / "a"),
    ]
    done = CliRunner().invoke(app, ["run", *options])
    assert done.exit_code == 0, done.output
    written = tomllib.loads((tmp_path / "a" / "settings.toml").read_text())
    assert written["model"]["frozen"] == "all"
    assert written["run"]["trunk"] == "always"


@pytest.mark.parametrize(
    "options",
    [
        ["--model", "efficientnet-lite0", "--pretrained", "no"],  # 64 numbers are no picture
        ["--model", "mlp", "--image-size", "32"],
        ["--model", "mlp", "--pretrained", "nowhere.safetensors"],
        ["--model", "mlp", "--frozen", "7"],
        ["--model", "mlp", "--frozen", "1.weight", "--trained", "1.bias"],
        ["--model", "mlp", "--lora-alpha", "2"],
    ],
)
def test_what_does_not_fit_is_one_line(options: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["run", *options, "--rounds", "1", "--out", str(tmp_path / "a")])
    assert isinstance(done.exception, UserError)
    assert "\n" not in str(done.exception)


def common(client: pflego.Client, frozen: str) -> Common:
    facts = Facts.of(client, None)
    return Common(
        "one",
        1,
        facts.samples,
        facts.task,
        facts.classes,
        len(facts.classes),
        facts.outputs,
        facts.schema,
        frozen,
    )


def test_a_site_works_with_the_servers_frozen_weights_alone_wherever_it_has_them(tmp_path: Path) -> None:
    theirs, ours = base(tmp_path / "server.safetensors", 1), base(tmp_path / "site.safetensors", 1)
    other = base(tmp_path / "other.safetensors", 2)
    client = pflego.Client("here", torch.rand(9, 64), torch.arange(9) % 3)
    asked = {"rounds": 1, "model": "mlp", "pretrained": theirs, "frozen": "1.weight"}
    server = pflego.models.build("mlp", (64,), pretrained=theirs, frozen="1.weight")
    assert server.base
    Path(theirs).unlink()  # at the server alone

    def desk(**config: str) -> Desk:
        site = Site.read({"client-id": "here", "data": "digits", "state": str(tmp_path), **config})
        return Desk.of(site.assignment(asked), client, common(client, server.base), None, device="cpu")

    assert desk(pretrained=ours).model.fingerprint() == server.fingerprint()
    with pytest.raises(UserError):
        desk()
    with pytest.raises(MessageError):
        desk(pretrained=other)


def test_what_is_said_of_a_federation_carries_the_digest() -> None:
    client = pflego.Client("here", torch.rand(9, 64), torch.arange(9) % 3)
    sent = common(client, "abc123")
    assert Common.read(decode(encode({}, asdict(sent))).facts) == sent
    before = {name: value for name, value in asdict(sent).items() if name != "base"}
    assert Common.read(decode(encode({}, before)).facts).base == ""
