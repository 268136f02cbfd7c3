"""What data say does not command a terminal or a spreadsheet, and what goes wrong is one line."""

from __future__ import annotations

import csv
import io
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.table import Table

from pflego.cli import main
from pflego.cli.console import Console, shown
from pflego.cli.rows import as_csv
from pflego.cli.terminal import one_line, printable
from pflego.comparison.tables import Sheet
from tests.support.cases import often

SOURCES = Path(__file__).parents[2] / "src"


@dataclass(frozen=True)
class Command:
    """A command line in an empty folder, and what a terminal gets of it."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    capfd: pytest.CaptureFixture[str]

    def __call__(self, *words: str) -> tuple[object, str, str]:
        """Give status, output and errors."""
        self.monkeypatch.setattr(sys, "argv", ["pflego", *words])
        self.monkeypatch.chdir(self.folder)
        status: object = 0
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
        said = self.capfd.readouterr()
        return status, said.out, said.err


@pytest.fixture
def pflego(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path, monkeypatch, capfd)


def test_control_characters_are_written_out() -> None:
    hostile = "a\x1b]0;title\x07b\x9b31m\u202ec\r"
    assert printable(hostile) == "a\\x1b]0;title\\x07b\\x9b31m\\u202ec\\r"
    assert printable("Ä\tß\n") == "Ä\tß\n"
    assert one_line("a\nb\x1b") == "a b\\x1b"


def test_a_console_keeps_its_own_colours_and_takes_none_from_texts() -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=80)
    table = Table("name\x1b[5m")
    table.add_row("row\x1b[7m")
    console.print(table)
    console.print("word\x1b[8m", style="bold", markup=False)
    assert "\x1b[1m" in shown.getvalue()  # bold, which was asked for
    for command in ("\x1b[5m", "\x1b[7m", "\x1b[8m"):
        assert command not in shown.getvalue()
    assert "row\\x1b" in shown.getvalue()


def test_long_names_of_variants_leave_room_for_whole_figures() -> None:
    out, name = io.StringIO(), "pflego+common_head=true+batch_size=32+head_decay=1"
    figures = ["91.18 ± 0.32", "91.17 ± 0.31", "90.98 ± 0.96", "57.71 ± 7.43", "0.0013 ± 0.0006"]
    headings = ["everyone adapted", "everyone", "participants", "behind", "loss"]
    Console(file=out, width=80).print(shown(Sheet("accuracy, %", headings, {"": [[name, *figures]]})))
    lines = [line.split("│")[1:-1] for line in out.getvalue().splitlines() if "│" in line]
    names, *columns = zip(*lines, strict=True)
    assert "".join(map(str.strip, names)) == name
    assert [" ".join(map(str.strip, column)).strip() for column in columns] == figures


def test_names_in_data_reach_neither_terminal_nor_messages_as_commands(
    tmp_path: Path, pflego: Command
) -> None:
    names = ["y", "x\x1b[31m"]
    rows = "".join(f"{'ab'[n % 2]},{n}.5,{names[n % 3 > 0]}\n" for n in range(40))
    (tmp_path / "t.csv").write_text(f"site,age,label\n{rows}")
    status, shown, errors = pflego("data", "check", "t.csv", "--column", "site")
    assert status == 0, errors
    assert "x\\x1b[31m" in shown
    assert "\x1b" not in shown + errors
    status, _, errors = pflego("data", "check", "t.csv", "--column", "si\x1b[31mte")
    assert status == 2
    assert "\x1b" not in errors
    assert len(errors.splitlines()) == 1


def test_a_path_does_not_command_the_terminal(pflego: Command) -> None:
    for words in (
        ["deploy", "init", "app\x1b[31m"],
        ["deploy", "key", "key\x1b[31m"],
        ["check", "run\x1b[31m"],
    ):
        _, shown, errors = pflego(*words)
        assert "\\x1b[31m" in shown + errors
        assert "\x1b" not in shown + errors


def test_formulas_are_quoted_and_numbers_are_not() -> None:
    cells = ["=1+1", "+cmd", "-x", "@home", "\tx", " =1", "-1.5", "+2e3", "plain", "a=b"]
    text = as_csv(["=head", "n"], [{"=head": cell, "n": -3.5} for cell in cells])
    head, *rows = list(csv.reader(io.StringIO(text)))
    assert head == ["'=head", "n"]
    assert [row[0] for row in rows] == [
        "'=1+1", "'+cmd", "'-x", "'@home", "'\tx", "' =1", "-1.5", "+2e3", "plain", "a=b",
    ]  # fmt: skip
    assert {row[1] for row in rows} == {"-3.5"}


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--data", "."],
        ["run", "settings"],  # a folder where a file should be
        ["predict", "settings", "--data", "settings"],
        ["run", "drop.toml"],
        ["run", "--clients", "1000000"],
        ["run", "--server-lr", "1e39"],
        ["data", "schema", "digits", "--out", "settings"],
        ["run", "--out", "file", "--rounds", "1"],
        ["data", "check", "photos", "--size", "100000"],
        ["theory", "--out", "."],
        ["paper", "results", "--out", "."],
        ["deploy", "key", "/proc/site.pem"],  # where nothing can be written
    ],
)
def test_what_is_wrong_with_files_is_one_line(tmp_path: Path, pflego: Command, words: list[str]) -> None:
    (tmp_path / "settings").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "drop.toml").write_text("drop = 3\n")
    (tmp_path / "photos" / "a" / "x").mkdir(parents=True)
    status, _, errors = pflego(*words)
    assert status == 2, errors
    assert errors.startswith("pflego: ")
    assert len(errors.splitlines()) == 1


SAYS_WHEN_IT_MINDS_CTRL_C = """
import runpy, signal, sys, threading, time

def watch():
    while signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        time.sleep(0.001)
    print("minded", flush=True)

threading.Thread(target=watch, daemon=True).start()
sys.argv = ["pflego", *sys.argv[1:]]
runpy.run_module("pflego", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("seconds", often([0.0, 0.4, 1.5, 3.0], 0.4))
def test_ctrl_c_is_one_line_whenever_it_comes(tmp_path: Path, seconds: float) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SAYS_WHEN_IT_MINDS_CTRL_C, "advise", "digits", "--clients", "40"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "minded\n"
        time.sleep(seconds)
        os.kill(process.pid, signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=8)
        except subprocess.TimeoutExpired:
            # Python drops what is raised while it finalises an object: press again
            os.kill(process.pid, signal.SIGINT)
            _, errors = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT), errors  # a shell shows 130 for both
    assert "Traceback" not in errors


def test_nothing_that_takes_time_is_imported_before_ctrl_c_is_minded() -> None:
    # what `python -m pflego` imports before the command's own first line is the package
    listed = "import pflego, sys; print(*sys.modules)"
    command = [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(SOURCES)!r}); {listed}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "pflego" in done.stdout.split()
    assert not {"typing", "re", "importlib.metadata"} & {*done.stdout.split()}


def test_ctrl_c_is_not_swallowed_by_what_is_imported(tmp_path: Path) -> None:
    (tmp_path / "deaf.py").write_text(
        "import os, signal, time\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(5)\n"
        "except BaseException:\n"  # as code written in C may
        "    pass\n"
    )
    command = [sys.executable, "-m", "pflego", "run", "--model", "deaf:make", "--rounds", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 130, done.stderr
    assert done.stderr.strip() == "pflego: stopped"


@pytest.mark.parametrize(
    "words",
    [["run", "--no-such-option", "3"], ["nothing"], ["predict"], ["run", "--resume=maybe"], ["report"]],
    ids=lambda words: " ".join(words),
)
def test_a_command_line_that_makes_no_sense_is_one_line_and_status_2(
    pflego: Command, words: list[str]
) -> None:
    status, _, errors = pflego(*words)
    assert status == 2
    assert errors.startswith("pflego: ")
    assert errors.count("\n") == 1
    assert "--help" in errors
