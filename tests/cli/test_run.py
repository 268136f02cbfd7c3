import json
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from pflego.algorithms.registry import methods
from pflego.cli import app, main
from pflego.files import read_tensors
from pflego.settings.tables import known, read_settings, spelled_option
from pflego.training.loop import NothingLearnedWarning
from tests.support.cases import often

Row = dict[str, float | int | None]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with small data sets: three classes, and a regression."""
    folder = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(0)
    y = np.arange(36) % 3
    x = (generator.normal(size=(36, 4)) + y[:, None]).astype(np.float32)
    for name, labels in [("small", y), ("numbers", x[:, 0] + 0.5)]:
        np.savez(
            folder / f"{name}.npz", x_train=x[:24], y_train=labels[:24], x_test=x[24:], y_test=labels[24:]
        )
    return folder


@pytest.fixture(scope="module")
def common(data: Path) -> list[str]:
    """Options of a run that takes no time."""
    return [
        "--data",
        str(data / "small.npz"),
        "--clients",
        "4",
        "--rounds",
        "4",
        "--steps",
        "3",
        "--device",
        "cpu",
    ]


@pytest.fixture(scope="module")
def finished(common: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("runs") / "a"
    return folder, succeed(*common, "--participation", "2", "--out", str(folder))


def succeed(*options: str) -> Result:
    result = CliRunner().invoke(app, ["run", *options])
    assert result.exit_code == 0, result.stderr or result.exception
    return result


def history(folder: Path) -> list[Row]:
    """The rounds of a run, but for the time they took."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def settings(folder: Path) -> dict[str, object]:
    """The settings of a run, as the command line calls them."""
    return read_settings(folder / "settings.toml")


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_refused(
    options: Sequence[str], reason: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pflego", "run", *options])
    with pytest.raises(SystemExit) as stopped:
        main()
    said = capfd.readouterr()
    assert stopped.value.code == 2
    assert said.out == ""
    assert said.err.startswith("pflego: ")
    assert said.err.count("\n") == 1
    assert said.err.endswith("\n")
    assert reason in said.err


def test_a_run_leaves_settings_metrics_a_checkpoint_and_a_report(finished: tuple[Path, Result]) -> None:
    folder, _ = finished
    assert settings(folder).items() >= {"clients": 4, "rounds": 4, "steps": 3, "participation": "2"}.items()
    assert [row["round"] for row in history(folder)] == [1, 2, 3, 4]
    assert [row["participants"] for row in history(folder)] == [2, 2, 2, 2]
    tensors, facts = read_tensors(folder / "checkpoint" / "server.safetensors")
    assert facts.whole("round", least=1) == 4
    assert tensors["shared/1.weight"].shape == (200, 4)
    assert "</html>" in (folder / "report.html").read_text()
    assert {path.name for path in folder.iterdir()} == {
        "settings.toml",
        "metrics.jsonl",
        "checkpoint",
        "report.html",
    }


def test_a_run_says_what_came_of_it_and_where_it_is(finished: tuple[Path, Result]) -> None:
    folder, result = finished
    accuracy = history(folder)[-1]["everyone_accuracy"]
    assert accuracy is not None
    assert f"{100 * accuracy:.2f} %" in result.stdout
    assert f"results in {folder}" in result.stdout
    assert "round 4 of 4" in result.stderr


@pytest.mark.parametrize(
    "options",
    often(
        [
            [],
            ["--participation", "binomial:0.5", "--seed", "3"],
            ["--algorithm", "local", "--head-init", "uniform"],
            ["--server-optimizer", "sgd", "--head-step", "exact", "--evaluate-every", "2"],
            ["--data-seed", "5", "--model-seed", "6"],
            ["--data", "numbers", "--data-dir", "DATA"],
        ]
    ),
    ids=" ".join,
)
def test_the_settings_of_a_run_run_again_give_the_same_history(
    options: list[str], data: Path, common: list[str], tmp_path: Path
) -> None:
    chosen = [str(data) if option == "DATA" else option for option in options]
    succeed(*common, *chosen, "--out", str(tmp_path / "first"))
    succeed(str(tmp_path / "first" / "settings.toml"), "--out", str(tmp_path / "second"))
    assert history(tmp_path / "second") == history(tmp_path / "first")


def test_a_data_set_found_through_the_environment_is_found_again(
    data: Path, common: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PFLEGO_DATA", str(data))
    succeed(*common, "--data", "small", "--out", str(tmp_path / "first"))
    succeed(str(tmp_path / "first" / "settings.toml"), "--out", str(tmp_path / "second"))
    assert history(tmp_path / "second") == history(tmp_path / "first")


@pytest.mark.parametrize(
    "text",
    [
        "seed = 7\nrounds = 5\nsteps = 2\nout = 'OUT'\n",
        "[method]\nsteps = 2\n[run]\nseed = 7\nrounds = 5\nout = 'OUT'\n",
    ],
    ids=["flat", "in tables"],
)
def test_options_take_precedence_over_the_file(text: str, common: list[str], tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(text.replace("OUT", str(tmp_path / "file")))
    succeed(str(file), *common, "--out", str(tmp_path / "option"))
    assert settings(tmp_path / "option").items() >= {"seed": 7, "rounds": 4, "steps": 3}.items()
    assert not (tmp_path / "file").exists()


def test_the_record_of_a_run_is_no_setting(finished: tuple[Path, Result]) -> None:
    tables = tomllib.loads((finished[0] / "settings.toml").read_text())
    assert tables.keys() == {"data", "model", "method", "run", "record"}
    assert tables["record"].keys() >= {"pflego", "torch", "python"}
    assert not {"record", *tables["record"]} - {"model"} & settings(finished[0]).keys()


def test_without_a_folder_the_first_free_one_is_taken(
    common: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("runs/small-pflego", "runs/small-pflego-2"):
        assert f"results in {folder}" in succeed(*common).stdout
        assert len(history(tmp_path / folder)) == 4


@pytest.mark.parametrize("name", ["run[a]", "run[/a]", "two words"])
def test_a_folder_of_any_name_is_said_as_it_is(name: str, common: list[str], tmp_path: Path) -> None:
    assert f"results in {tmp_path / name}," in succeed(*common, "--out", str(tmp_path / name)).stdout


def test_a_run_may_go_on_for_longer(common: list[str], tmp_path: Path) -> None:
    options = [*common, "--evaluate-every", "1"]
    succeed(*options, "--out", str(tmp_path / "a"))
    succeed("--resume", "--rounds", "7", "--out", str(tmp_path / "a"))
    succeed(*options, "--rounds", "7", "--out", str(tmp_path / "b"))
    assert history(tmp_path / "a") == history(tmp_path / "b")


@pytest.mark.parametrize(
    "options",
    [["--data-seed", "5"], ["--model-seed", "6"], ["--data", "small", "--data-dir", "DATA"]],
    ids=" ".join,
)
def test_a_run_is_resumed_with_all_of_its_own_settings(
    options: list[str], data: Path, common: list[str], tmp_path: Path
) -> None:
    chosen = [str(data) if option == "DATA" else option for option in options]
    succeed(*common, *chosen, "--out", str(tmp_path / "a"))
    succeed("--resume", "--rounds", "5", "--out", str(tmp_path / "a"))
    assert len(history(tmp_path / "a")) == 5


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--data", "digts"], "unknown data set 'digts': did you mean 'digits'?"),
        (["--algorithm", "pflgo"], "unknown algorithm 'pflgo': did you mean 'pflego'?"),
        (["--model", "mpl"], "unknown model 'mpl': did you mean 'mlp'?"),
        (["--algorithm", "local", "--server-lr", "0.1"], "local has no setting 'server_lr'; its own are"),
        (["--client-lr", "0"], "client_lr must be a number above 0"),
        (["--server-lr", "0"], "server_lr must be a number above 0"),
        (["--client-lr", "nan"], "client_lr must be a number above 0"),
        (["--steps", "0"], "steps must be a whole number above 0"),
        (["--rounds", "0"], "rounds must be a whole number above 0"),
        (["--clients", "0"], "clients must be a whole number above 0"),
        (["--clients", "1000"], "is too small for 1000 clients"),
        (["--classes-per-client", "4"], "classes_per_client must be from 1 to 3"),
        (["--participation", "5"], "participation asks for 5 clients per round, but the federation has 4"),
        (["--participation", "between:2-9"], "participation asks for 9 clients per round"),
        (["--participation", "half"], "cannot read participation 'half'"),
        (["--server-optimizer", "adm"], "unknown server_optimizer 'adm': did you mean 'adam'?"),
        (["--head-step", "exat"], "unknown head_step 'exat': did you mean 'exact'?"),
        (["--evaluate-every", "-1"], "evaluate_every must be a whole number at least 0"),
        (["--checkpoint-every", "0"], "checkpoint_every must be a whole number above 0"),
        (["--device", "abacus"], "device 'abacus' cannot be used here"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_option_is_refused_in_one_line_before_anything_is_written(
    options: list[str],
    reason: str,
    common: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert_refused([*common, *options, "--out", str(tmp_path / "a")], reason, monkeypatch, capfd)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("client_rl = 0.1", "unknown setting 'client_rl': did you mean 'client_lr'?"),
        ("[metod]\nsteps = 3", "unknown setting 'metod'"),
        ("[method]\nhead_stepp = 'exact'", "unknown setting 'head_stepp': did you mean 'head_step'?"),
        ("[run]\nseed = 'one'", "seed must be a whole number"),
        ("[run]\ndropout = 1", "dropout must be a number at least 0 and below 1"),
        ("steps = = 3", "settings.toml is not valid TOML"),
        ("seed = 1\nseed = 2", "settings.toml is not valid TOML"),
        ("algorithm = 'local'\nhead_step = 'exact'", "local has no setting 'head_step'"),
        ("seed = 'one'", "seed must be a whole number"),
        ("seed = 1.5", "seed must be a whole number"),
        ("data_seed = 1.5", "seed must be a whole number"),
        ("model_seed = 'one'", "seed must be a whole number"),
        ("client_lr = '0.1'", "client_lr must be a number above 0"),
        ("participation = true", "participation must be a number of clients per round"),
        ("server_optimizer = ['adam']", "unknown server_optimizer"),
        ("model = 3", "model must be a text, not 3"),
        ("device = true", "device"),
        ("out = 3", "out"),
        ("data = 'mnist'\ndata_dir = 3", "data_dir"),
    ],
)
def test_a_wrong_settings_file_is_refused_in_one_line(
    line: str,
    reason: str,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "settings.toml"
    own = "" if "data =" in line else f"data = '{data / 'small.npz'}'\n"
    file.write_text(f"{own}clients = 4\nrounds = 1\nsteps = 1\n{line}\n".replace("steps = 1\nsteps", "steps"))
    assert_refused([str(file)], reason, monkeypatch, capfd)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "No such file or directory"), (b"seed = '\xff'", "is not valid TOML")],
    ids=["missing", "not text"],
)
def test_a_settings_file_that_cannot_be_read_is_refused(
    content: bytes | None,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "settings.toml"
    if content is not None:
        file.write_bytes(content)
    assert_refused([str(file)], reason, monkeypatch, capfd)


@pytest.mark.parametrize(
    ("out", "reason"),
    [
        ("taken", "cannot write to the folder"),
        ("taken/a", "cannot write to the folder"),
        ("x" * 300, "File name too long"),
    ],
    ids=["a file", "below a file", "long name"],
)
def test_a_folder_that_cannot_be_written_is_refused(
    out: str,
    reason: str,
    common: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "taken").write_text("a file")
    assert_refused([*common, "--out", str(tmp_path / out)], reason, monkeypatch, capfd)
    assert (tmp_path / "taken").read_text() == "a file"


def test_an_existing_run_is_not_overwritten(
    finished: tuple[Path, Result],
    common: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder, _ = finished
    before = contents(folder)
    assert_refused([*common, "--out", str(folder)], "already holds a run: resume it", monkeypatch, capfd)
    assert contents(folder) == before


def test_a_run_is_not_resumed_with_other_settings(
    finished: tuple[Path, Result], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, _ = finished
    before = contents(folder)
    options = ["--resume", "--out", str(folder), "--steps", "4"]
    assert_refused(options, "started with other settings: steps was 3, is now 4", monkeypatch, capfd)
    assert contents(folder) == before


def test_to_resume_a_run_one_must_say_where_it_is(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert_refused(["--resume"], "say where it is: --out FOLDER", monkeypatch, capfd)


def test_the_command_itself_exits_with_status_2_and_one_line(tmp_path: Path) -> None:
    command = [
        str(Path(sys.executable).with_name("pflego")),
        "run",
        "--data",
        "digts",
        "--out",
        str(tmp_path / "a"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "pflego: unknown data set 'digts': did you mean 'digits'? "
        "(known: cifar10, diabetes, digits, emnist, fashion-mnist, "
        "heart, mnist, omniglot, schools, schools-hsb82, shakespeare, watch)"
    ]


def test_help_lists_run() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert "run" in result.stdout.split()


@pytest.mark.parametrize(
    "words",
    often(
        [
            ["--help"],
            ["--version"],
            *([command, "--help"] for command in ("report", "evaluate", "predict", "export", "join")),
            *([group, "--help"] for group in ("data", "deploy", "paper", "theory")),
            ["paper", "settings", "--help"],
        ],
        ["--help"],
        ["paper", "settings", "--help"],
    ),
    ids=" ".join,
)
def test_help_without_settings_does_not_wait_for_torch(words: list[str]) -> None:
    script = (
        "import atexit, sys\n"
        "from pflego.cli import main\n"
        "atexit.register(lambda: print('torch' in sys.modules, 'numpy' in sys.modules))\n"
        f"sys.argv[1:] = {words!r}\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "False False"


@pytest.mark.parametrize("command", ["run", "compare", "tune"])
def test_help_has_every_setting_that_is_declared(command: str) -> None:
    """Those of data, model, run and all methods; a method's field that is called like another is method.<name>."""
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).stdout
    options = set(re.findall(r"--[a-z][a-z0-9-]*", shown))
    names = {name for table in ("data", "model", "run") for name in known(table)}
    names |= {name for kind in methods().values() for name in known("method", kind)}
    without = {
        "run": set[str](),
        "compare": {"algorithm", "track", "engine"},  # each method has a folder of its own
        "tune": {"track", "engine", "states", "checkpoint_every"},  # trials have no folder
    }[command]
    assert options >= {spelled_option(name) for name in names - without}
    assert not options & {spelled_option(name) for name in without}


def test_an_interrupted_run_says_how_to_go_on_and_goes_on_exactly(common: list[str], tmp_path: Path) -> None:
    folder, whole = tmp_path / "a", tmp_path / "b"
    options = [*common, "--participation", "binomial:0.4"]
    # A shell may start its background jobs deaf to SIGINT, and children inherit that.
    script = (
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from pflego.cli import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", script, "run", *options, "--rounds", "1000000", "--out", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        metrics = folder / "metrics.jsonl"
        while not metrics.exists() or metrics.read_text().count("\n") < 3:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        said, complaint = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert said == ""
    assert complaint.splitlines()[-1] == f"stopped; go on with: pflego run --resume --out {folder}"
    assert "Traceback" not in complaint

    rounds = str(len(history(folder)) + 10)
    succeed("--resume", "--out", str(folder), "--rounds", rounds)
    succeed(*options, "--rounds", rounds, "--out", str(whole))
    assert history(folder) == history(whole)
    for file in ("checkpoint/server.safetensors", "metrics.jsonl", "report.html"):
        assert (folder / file).exists()


def test_members_networks_and_objectives_are_settings_like_others(common: list[str], tmp_path: Path) -> None:
    (tmp_path / "chances.csv").write_text("client,probability\n0,1\n1,0.9\n2,0.8\n3,0.7\n")
    (tmp_path / "members.json").write_text('{"join": {"3": 3}, "leave": {"1": 4}}')
    options = [
        "--participation", f"independent:{tmp_path / 'chances.csv'}", "--missing", "inverse",
        "--population", str(tmp_path / "members.json"), "--objective", "cvar:0.5/0.1",
        "--dropout", "0.2", "--burst", "2", "--latency", "0.5", "--bandwidth", "100", "--speed-spread", "0",
        "--deadline", "1.0", "--server-lr", "0.01",
    ]  # fmt: skip
    with pytest.warns(NothingLearnedWarning):
        result = CliRunner().invoke(app, ["run", *common, *options, "--out", str(tmp_path / "a")])
    assert result.exit_code == 1  # everybody takes twice half a second, and more: nothing was learned
    assert "the server would have waited" in result.stdout
    assert "4.0 s" in result.stdout
    assert "asked and never heard" in result.stdout
    (tmp_path / "chances.csv").unlink()  # what it said is in the settings
    (tmp_path / "members.json").unlink()
    folder = tmp_path / "a"
    with pytest.warns(NothingLearnedWarning):
        CliRunner().invoke(app, ["run", "--resume", "--out", str(folder), "--rounds", "6"])
    rows = history(folder)
    assert [row["members"] for row in rows] == [3, 3, 4, 3, 3, 3]
    assert settings(folder)["population"] == '{"join": {"3": 3}, "leave": {"1": 4}}'
