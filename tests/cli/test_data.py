import gzip
import subprocess
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from PIL import Image
from typer.testing import CliRunner

import pflego
from pflego.cli import app, main
from pflego.data.sets.catalogue import CATALOGUE, KNOWN
from pflego.data.sets.download import Remote
from pflego.settings.experiment import Experiment
from tests.support.cases import often
from tests.support.file_server import serving
from tests.support.official import MNIST, idx, labels, omniglot_drawings, pictures, write_packed


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PFLEGO_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PFLEGO_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder: a small MNIST whose samples have writers, and a small Omniglot."""
    folder = tmp_path / "data"
    folder.mkdir()
    x, y = pictures(40, 6, 6), labels(40, 10)
    writer = np.repeat(["ann", "bo"], [25, 15])
    np.savez(
        folder / "mnist.npz",
        x_train=x,
        y_train=y,
        x_test=x[:20],
        y_test=y[:20],
        writer_train=writer,
        writer_test=writer[:20],
    )
    write_packed(folder / "omniglot.npz", omniglot_drawings())
    return folder


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["data", *words])


def succeed(*words: str) -> str:
    result = run(*words)
    assert result.exit_code == 0, result.stderr or result.exception
    return result.stdout


def refuse(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["pflego", "data", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    said = capfd.readouterr()
    assert stopped.value.code == 2
    assert said.out == ""
    assert said.err.startswith("pflego: ")
    assert said.err.count("\n") == 1
    return said.err


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("│\n ").split("│")]


def table(text: str) -> dict[str, list[str]]:
    rows = [cells(line) for line in text.splitlines() if line.startswith("│")]
    return {row[0]: row[1:] for row in rows}


def test_list_says_what_there_is_and_where(folder: Path) -> None:
    rows = table(succeed("list", "--data-dir", str(folder)))
    assert list(rows) == list(KNOWN)
    assert rows["digits"] == ["1,438", "359", "10", "64", "embedded"]
    assert rows["diabetes"] == ["354", "88", "–", "10", "embedded"]
    assert rows["mnist"] == ["40", "20", "10", "6×6", str(folder / "mnist.npz")]
    assert rows["cifar10"] == ["50,000", "10,000", "10", "32×32×3", "download, 170 MB"]
    assert rows["omniglot"][-1] == str(folder / "omniglot.npz")


def test_get_fetches_into_the_cache_and_says_where(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [pictures(6, 4, 5), labels(6), pictures(3, 4, 5), labels(3)]
    files = {f"{name}.gz": gzip.compress(idx(array)) for name, array in zip(MNIST, arrays, strict=True)}
    with serving() as server:
        server.files = {f"/{name}": content for name, content in files.items()}
        remotes = [
            Remote(name, [server.url + name], len(content), sha256(content).hexdigest())
            for name, content in files.items()
        ]
        monkeypatch.setitem(CATALOGUE, "mnist", replace(CATALOGUE["mnist"], remotes=remotes))
        assert succeed("get", "mnist", "digits") == (
            f"mnist is in {cache / 'mnist'}\ndigits is embedded, there is nothing to fetch\n"
        )
        assert len(server.asked) == 4
        succeed("get", "mnist")
        assert len(server.asked) == 4
    assert pflego.load("mnist", clients=3, classes_per_client=1).samples == 6


def test_get_leaves_alone_what_the_data_folder_has(folder: Path) -> None:
    assert succeed("get", "mnist", "--data-dir", str(folder)) == f"mnist is in {folder / 'mnist.npz'}\n"


def test_get_says_what_is_unknown(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert "unknown data set 'minst': did you mean 'mnist'?" in refuse(monkeypatch, capfd, "get", "minst")


def test_get_without_a_network_says_what_to_do_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    remotes = [replace(file, urls=["http://127.0.0.1:9/x"]) for file in CATALOGUE["cifar10"].remotes]
    monkeypatch.setitem(CATALOGUE, "cifar10", replace(CATALOGUE["cifar10"], remotes=remotes))
    said = refuse(monkeypatch, capfd, "get", "cifar10")
    assert "no connection to 127.0.0.1:9. Put cifar-10-binary.tar.gz, or cifar10.npz" in said


def test_data_may_be_named_as_for_a_run() -> None:
    plain = succeed("show", "digits", "--clients", "7")
    assert succeed("show", "--clients", "7", "--data", "digits") == plain
    assert succeed("show", "--data=digits", "--clients", "7") == plain


def test_show_counts_clients_samples_and_classes() -> None:
    text = succeed("show", "digits", "--clients", "4", "--classes-per-client", "none", "--seed", "3")
    assert "digits, 4 clients" in text
    sizes = sorted(pflego.load("digits", clients=4, classes_per_client=10, seed=3).sizes.tolist())
    rows = table(text)
    middle = f"{(sizes[1] + sizes[2]) / 2:g}"
    assert rows["training samples"] == [str(sizes[0]), middle, str(sizes[3]), "1,438"]
    assert rows["classes"] == ["10", "10", "10", "10"]


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        (["digits"], {"data": "digits"}),
        (
            ["digits", "--clients", "9", "--partition", "dirichlet", "--alpha", "0.2", "--data-seed", "4"],
            {"data": "digits", "clients": 9, "partition": "dirichlet", "alpha": 0.2, "data_seed": 4},
        ),
        (["digits", "--partition", "iid"], {"data": "digits", "partition": "iid"}),
        (
            ["mnist", "--partition", "column", "--column", "writer"],
            {"data": "mnist", "partition": "column", "column": "writer"},
        ),
        (
            ["omniglot", "--split", "paper", "--rotations", "2"],
            {"data": "omniglot", "split": "paper", "rotations": 2},
        ),
        (
            ["mnist", "--clients", "4", "--classes-per-client", "medium"],
            {"data": "mnist", "clients": 4, "classes_per_client": "medium"},
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_show_shows_what_an_experiment_of_these_settings_has(
    folder: Path, words: list[str], settings: dict[str, object]
) -> None:
    rows = table(succeed("show", *words, "--data-dir", str(folder)))
    federation = Experiment.build({**settings, "data_dir": str(folder)}).federation
    assert rows["training samples"] == [
        str(federation.sizes.min()),
        f"{np.median(federation.sizes):g}",
        str(federation.sizes.max()),
        f"{federation.samples:,}",
    ]


def test_an_experiment_notes_how_its_federation_was_made(folder: Path) -> None:
    settings = {"data": "omniglot", "data_dir": str(folder), "rotations": 1}
    experiment = Experiment.build(settings)
    assert experiment.settings.value("clients") == 3
    made = experiment.federation.source
    assert made.items() >= {"clients": 3, "split": "drawing", "rotations": 1}.items()
    again = Experiment.build(made)
    assert again.federation.fingerprint() == experiment.federation.fingerprint()


@pytest.mark.parametrize(
    "words", often([["digits"], ["mnist", "--partition", "iid"], ["omniglot"]]), ids=" ".join
)
def test_show_draws_a_picture(folder: Path, tmp_path: Path, words: list[str]) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "new" / "picture.png"
    assert f"drawn in {out}" in succeed("show", *words, "--data-dir", str(folder), "--out", str(out))
    with Image.open(out) as image:
        assert image.width > 800


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["digits", "--alpha", "0.3"], "alpha is for partition='dirichlet'"),
        (["digits", "--partition", "clases"], "did you mean 'classes'"),
        (["digits", "--split", "paper"], "split does not apply to"),
        (["digits", "--out", "picture.doc"], "its name must end in .png"),
        (["nothing.npz"], "cannot read nothing.npz"),
    ],
)
def test_show_refuses_in_one_line(
    words: list[str], reason: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert reason in refuse(monkeypatch, capfd, "show", *words)


@pytest.mark.parametrize("word", ["low", "2.5"])
def test_a_degree_is_a_number_or_one_of_three_words(
    word: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    said = refuse(monkeypatch, capfd, "show", "digits", "--classes-per-client", word)
    assert f"a whole number above 0 or high or medium or none, not '{word}'" in said


def test_help_does_not_load_torch() -> None:
    code = "import sys; import pflego.cli; sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'pooch', 'PIL')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.fixture
def patients(tmp_path: Path) -> Path:
    pytest.importorskip("pyarrow")
    path = tmp_path / "patients.csv"
    rows = [f"{'ab'[k % 2]},{k * k % 11},{'xyz'[k % 3]},{k % 2}" for k in range(24)]
    path.write_text("\n".join(["site,age,ward,label", *rows]))
    return path


def test_show_takes_tables_of_your_own(patients: Path, tmp_path: Path) -> None:
    rows = table(succeed("show", str(patients), "--column", "site", "--test-share", "0.25"))
    assert rows["training samples"] == ["9", "9", "9", "18"]
    pytest.importorskip("matplotlib")
    out = tmp_path / "picture.png"
    assert "drawn in" in succeed("show", str(patients), "--column", "site", "--out", str(out))


def test_a_schema_is_written_for_sites_that_have_only_their_own_data(patients: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "schema.json"
    assert f"written to {out}" in succeed("schema", str(patients), "--column", "site", "--out", str(out))
    whole = pflego.load(patients, column="site")
    assert out.read_text() == whole.schema.to_json()  # type: ignore[union-attr]
    site = tmp_path / "b.csv"
    lines = patients.read_text().splitlines()
    site.write_text("\n".join(line.partition(",")[2] for line in lines if line[0] != "a"))
    words = [
        "run",
        "--data",
        str(site),
        "--schema",
        str(out),
        "--rounds",
        "1",
        "--out",
        str(tmp_path / "run"),
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.exception
    run = pflego.open_run(tmp_path / "run")
    assert run.federation[0].x_train.tolist() == whole.client("b").x_train.tolist()
