from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from flwr.common.config import get_fused_config_from_dir, get_project_config

import pflego
from pflego.deploy.certificates import write_certificates
from pflego.deploy.flower.app_config import AppConfig, Deployment
from pflego.deploy.folder import write_app
from pflego.settings.tables import read_settings
from tests.support.processes import NGINX


def test_flower_takes_the_folder_and_its_settings(tmp_path: Path) -> None:
    written = write_app(tmp_path / "My hospitals", {"rounds": 7, "algorithm": "fedrep", "body-steps": 2})
    assert {str(path.relative_to(tmp_path / "My hospitals")) for path in written} == {
        "README.md",
        "nginx.conf",
        "pyproject.toml",
        "federation/__init__.py",
        "federation/client_app.py",
        "federation/server_app.py",
    }
    assert get_project_config(tmp_path / "My hospitals")["project"]["name"] == "my-hospitals"
    changed = get_fused_config_from_dir(tmp_path / "My hospitals", {"rounds": 9, "min_clients": 5})
    config = AppConfig.read(changed)
    assert config.settings.value("rounds") == 9
    assert config.deployment.min_clients == 5
    assert isinstance(config.algorithm, pflego.FedRep)
    assert config.algorithm.body_steps == 2
    assert config.assignment.algorithm == config.algorithm  # what sites make of it


def test_defaults_are_those_of_a_run(tmp_path: Path) -> None:
    write_app(tmp_path / "app", {})
    config = AppConfig.read(get_fused_config_from_dir(tmp_path / "app", {}))
    assert config.algorithm == pflego.PFLEGO()
    assert config.settings.value("participation") == "everyone"
    assert config.deployment == Deployment()


def test_settings_may_be_in_tables(tmp_path: Path) -> None:
    """In the settings file that the app is made from, and in the app."""
    (tmp_path / "settings.toml").write_text('[method]\nname = "fedprox"\nsteps = 3\n[run]\nrounds = 7\n')
    write_app(tmp_path / "app", read_settings(tmp_path / "settings.toml"))
    file = tmp_path / "app" / "pyproject.toml"
    file.write_text(file.read_text() + "[tool.flwr.app.config.method]\nmu = 0.5\n")
    config = AppConfig.read(get_fused_config_from_dir(tmp_path / "app", {}))
    assert config.algorithm == pflego.FedProx(steps=3, mu=0.5)
    assert config.settings.value("rounds") == 7
    assert config.assignment.algorithm == config.algorithm


def test_the_readme_names_the_folder_and_leaves_no_blanks(tmp_path: Path) -> None:
    write_app(tmp_path / "wards", {"out": "runs/x"})
    readme = (tmp_path / "wards" / "README.md").read_text()
    assert "pflego deploy server wards --certs certs" in readme
    assert "`runs/x`" in readme
    assert not re.search(r"\$[a-z{]", readme)


@pytest.mark.skipif(not NGINX.exists(), reason="nginx is not installed (Debian: nginx-light)")
def test_nginx_takes_its_configuration(tmp_path: Path) -> None:
    write_app(tmp_path / "wards", {})
    write_certificates(tmp_path / "certs", ["server.example.org"])
    config = tmp_path / "wards" / "nginx.conf"
    told = subprocess.run(
        [NGINX, "-t", "-p", tmp_path, "-c", config], capture_output=True, text=True, timeout=60
    )
    assert told.returncode == 0, told.stderr


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"data": "digits"}, "data is a site's own business"),
        ({"classes_per_client": 2}, "a site's own business"),
        ({"rouds": 3}, "unknown setting 'rouds': did you mean 'rounds'"),
        ({"dropout": 0.1}, "dropout is for simulations"),
        ({"deadline": 30.0}, "deadline is for simulations"),
        ({"engine": "local"}, "engine is for simulations"),
        ({"dropuot": 0.1}, "unknown setting 'dropuot'"),
        ({"reply_timeout": 0}, "reply_timeout must be a number above 0"),
        ({"min_clients": 1.5}, "min_clients must be a whole number"),
        ({"pin_keys": "no"}, "pin_keys must be true or false"),
        ({"algorithm": "fedavgg"}, "did you mean 'fedavg'"),
        ({"mu": 1.0}, "pflego has no setting 'mu'"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], why: str, tmp_path: Path) -> None:
    with pytest.raises(pflego.SettingError, match=why):
        write_app(tmp_path / "app", settings)
    assert not (tmp_path / "app").exists()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "mine.txt").write_text("mine")
    with pytest.raises(pflego.FolderError, match="not empty"):
        write_app(tmp_path / "app", {})
    assert [path.name for path in (tmp_path / "app").iterdir()] == ["mine.txt"]


def test_every_setting_has_a_comment(tmp_path: Path) -> None:
    write_app(tmp_path / "app", {})
    text = (tmp_path / "app" / "pyproject.toml").read_text()
    config = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
    lines = text.splitlines()
    for name in config:
        [place] = [place for place, line in enumerate(lines) if line.startswith(f"{name} =")]
        assert lines[place - 1].startswith("# "), name
