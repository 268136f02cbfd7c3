"""What cannot go with secure sums is refused before anything begins, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

import pflego
from pflego.deploy.flower.app_config import AppConfig
from pflego.deploy.flower.secure.settings import SecureSum
from pflego.deploy.flower.site_config import Assignment
from pflego.deploy.flower.terms import run_config
from pflego.deploy.folder import write_app

SECURE = {"secure": True, "secure-clip": 1.0}
PRIVATE = {"privacy": "clip=1,noise=2", "weighting": "equal", "classes": "0-9"}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"secure-clip": None}, "need secure_clip"),
        ({"secure-threshold": 0.5}, "secure_threshold must be a number above 0.5"),
        ({"secure-least": 2}, "secure_least must be a whole number at least 3"),
        ({"secure-share": 1.0}, "secure_share must be"),
        ({"secure-clip": 0.0}, "secure_clip must be"),
        ({"server_lr": "auto", "server_optimizer": "sgd"}, "largest .* give its rate a number"),
        ({"algorithm": "fedsgd", "client_lr": "auto"}, "give its rate a number"),
        ({"algorithm": "fedpac"}, "fedpac needs contributions of single clients"),
        ({"algorithm": "feddane"}, "all must be asked the same"),
        ({"aggregation": "median"}, "the aggregation median looks at single contributions"),
        ({"aggregation": "normbound"}, "looks at single contributions"),
        ({"objective": "cvar:0.1"}, "single clients' losses"),
        ({"objective": "agnostic:0.1"}, "single clients' losses"),
        ({"max-norm": 3.0}, "max_norm is a check of single replies"),
        ({**PRIVATE, "privacy": "clip=1,noise=2,quantile=0.5"}, "leave out quantile"),
        ({**PRIVATE, "privacy": "clip=2,noise=2"}, "leave out secure_clip"),
        ({**PRIVATE, "participation": "binomial:0.5"}, "take everyone"),
        ({**PRIVATE, "participation": 4}, "take everyone"),
    ],
)
def test_what_needs_single_contributions_is_refused(given: dict[str, object], why: str) -> None:
    asked = {name: value for name, value in {**SECURE, **given}.items() if value is not None}
    with pytest.raises(pflego.SettingError, match=why):
        AppConfig.read(asked)


def test_what_sums_can_tell_is_accepted() -> None:
    for given in ({}, {"objective": "qfair:1.0"}, {"algorithm": "fedavg"}, {"missing": "renormalise"}):
        assert AppConfig.read({**SECURE, **given}).assignment.secure == SecureSum(on=True, clip=1.0)
    assert not AppConfig.read({}).deployment.secure.on


@pytest.mark.parametrize("clip", [{}, {"secure-clip": 0.5}])
def test_the_clip_of_privacy_is_that_of_the_sum(clip: dict[str, object]) -> None:
    read = AppConfig.read({**PRIVATE, "privacy": "clip=0.5,noise=2", "secure": True, **clip})
    assert read.deployment.secure == read.assignment.secure == SecureSum(on=True, clip=0.5)


def test_an_app_says_it_to_its_sites(tmp_path: Path) -> None:
    write_app(tmp_path / "app", {**SECURE, "secure-threshold": 0.75})
    config = run_config(tmp_path / "app")
    assert config["secure"] is True
    assert Assignment.read(config).secure == AppConfig.read(config).deployment.secure
    assert Assignment.read(config).secure == SecureSum(on=True, clip=1.0, threshold=0.75)
    text = (tmp_path / "app" / "pyproject.toml").read_text()
    assert "# The largest Euclidean norm of a contribution" in text


def test_more_than_half_and_no_fewer_than_agreed_must_stay() -> None:
    rules = SecureSum(threshold=0.51, least=3)
    assert [rules.needed(clients) for clients in range(1, 9)] == [3, 3, 3, 3, 3, 4, 4, 5]
    assert SecureSum(threshold=1.0).needed(7) == 7
    for clients in range(3, 200):
        assert 2 * SecureSum(threshold=0.501).needed(clients) > clients
