"""What is published: wheels made from sdists, installed where nothing of this clone is, and tried there."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]
# What the script below meets is looked at, and nothing else: it is enough to see our types, and takes seconds.
CONFIG = """\
[mypy]
strict = true
follow_imports = skip
[mypy-pflego,pflego.data,pflego.federation.*,pflego.training.train,pflego.runs.run,pflego.declaration]
follow_imports = silent
[mypy-pflego.algorithms.base,pflego.algorithms.registry,pflego.algorithms.pflego.*]
follow_imports = silent
"""
SCRIPT = """\
import pflego

federation = pflego.load("digits", clients=6)
run = pflego.train(federation, pflego.models.build("mlp", (64,)), pflego.PFLEGO(steps=5), rounds=2)
reveal_type(federation)
reveal_type(run)
pflego.PFLEGO(steps="many")
"""


class Elsewhere:
    """An environment of its own, which borrows what pflego depends on, and nothing of pflego."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder / "env", with_pip=False)
        self.bin = folder / "env" / "bin"
        [packages] = (folder / "env" / "lib").glob("python*/site-packages")
        (packages / "borrowed.pth").write_text(
            sysconfig.get_paths()["purelib"] + "\n"
        )  # its own .pth files are not read

    def install(self, wheel: Path) -> None:
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(self.bin / "python"),
            "install",
            "--no-index",
            "--no-deps",
        ]
        subprocess.run([*pip, "--quiet", "--ignore-installed", str(wheel)], check=True)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(self.folder), "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            words, env=environment, cwd=self.folder, capture_output=True, text=True, check=False
        )


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Both wheels, each built from its sdist."""
    out = tmp_path_factory.mktemp("dist")
    for folder in (ROOT, ROOT / "light"):
        build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(folder)]
        done = subprocess.run(build, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return sorted(out.glob("*.whl"))


@pytest.fixture(scope="module")
def elsewhere(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Elsewhere:
    place = Elsewhere(tmp_path_factory.mktemp("elsewhere"))
    for wheel in wheels:
        place.install(wheel)
    return place


@pytest.mark.slow
def test_the_wheels_are_small_and_marked_as_typed(wheels: list[Path]) -> None:
    assert [wheel.name.split("-")[0] for wheel in wheels] == ["pflego", "pflego_light"]
    for wheel in wheels:
        names = ZipFile(wheel).namelist()
        package = wheel.name.split("-")[0]
        assert f"{package}/py.typed" in names
        assert all(name.startswith((f"{package}/", f"{package}-")) for name in names)
        assert wheel.stat().st_size < 5e6


@pytest.mark.thorough
def test_what_was_installed_from_a_wheel_works(elsewhere: Elsewhere) -> None:
    where = elsewhere.run("python", "-c", "import pflego; print(pflego.__file__, pflego.__version__)")
    assert where.stdout.startswith(str(elsewhere.folder))
    version = elsewhere.run("pflego", "--version").stdout
    assert version == elsewhere.run("python", "-m", "pflego", "--version").stdout
    assert version.split()[1] == where.stdout.split()[1]
    assert f'version = "{version.split()[1]}"' in (ROOT / "pyproject.toml").read_text()
    assert "advise" in elsewhere.run("pflego", "--help").stdout
    settings = "--data digits --clients 6 --rounds 2 --steps 3 --out runs/a"
    trained = elsewhere.run("pflego", "run", *settings.split())
    assert trained.returncode == 0, trained.stderr
    assert (elsewhere.folder / "runs" / "a" / "settings.toml").exists()
    assert elsewhere.run("pflego", "check", "runs/a").returncode == 0
    assert "site" in elsewhere.run("pflego-light", "--help").stdout


@pytest.mark.thorough
def test_a_users_type_checker_sees_our_types(elsewhere: Elsewhere) -> None:
    (elsewhere.folder / "script.py").write_text(SCRIPT)
    (elsewhere.folder / "mypy.ini").write_text(CONFIG)
    words = ["--python-executable", str(elsewhere.bin / "python"), "script.py"]
    checked = elsewhere.run(sys.executable, "-m", "mypy", *words)
    said = checked.stdout.splitlines()
    seen = [line.split('"')[1] for line in said if "Revealed type" in line]
    assert seen == ["pflego.federation.roster.Federation", "pflego.runs.run.Run"], (
        checked.stdout + checked.stderr
    )
    assert [line.split(": ")[0] for line in said if ": error:" in line] == ["script.py:7"]
