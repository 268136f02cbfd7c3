"""The server's side of a checkpoint in a run's folder: the present one, and earlier ones to go back to.

server.safetensors is that of the last checkpoint; kept/<t>.safetensors are copies of it after some earlier rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pflego.codec import Decoded, MessageError
from pflego.errors import FolderError
from pflego.files import make_folder, read_checked, write_atomically, write_tensors
from pflego.weights import Weights


class ServerFiles:
    """The server's files in a folder of checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "server.safetensors"
        self.earlier = folder / "kept"

    def stamp(self) -> tuple[int, int] | None:
        """Tell one server.safetensors from the next that replaces it; None where there is none."""
        try:
            facts = self.path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise FolderError(f"{self.path} cannot be read: {error.strerror or error}") from error
        return facts.st_ino, facts.st_mtime_ns

    def read(self, round_number: int | None = None) -> Decoded:
        """Read and check the present checkpoint, or the one that was kept of a round."""
        return read_checked(self.path if round_number is None else self._of(round_number))

    def write(self, tensors: Weights, facts: Mapping[str, object]) -> None:
        """Replace the present checkpoint."""
        write_tensors(self.path, tensors, facts, private=True)

    def kept(self) -> list[int]:
        """List the rounds whose checkpoints can be gone back to."""
        return sorted(int(path.stem) for path in self.earlier.glob("*.safetensors") if path.stem.isdigit())

    def keep(self, round_number: int, most: int) -> list[int]:
        """Keep a copy of the present checkpoint, if more than it are wanted, and no more than so many; list them."""
        if most > 1:
            make_folder(self.earlier, private=True)
            write_atomically(self._of(round_number), self.path.read_bytes(), private=True)
        numbers = self.kept()
        latest = numbers[-most:] if most > 1 else []
        for number in set(numbers) - set(latest):
            self._of(number).unlink(missing_ok=True)
        return latest

    def go_back(self, round_number: int) -> None:
        """Make the checkpoint that was kept of a round the present one; later ones are gone."""
        if round_number not in self.kept():
            known = ", ".join(map(str, self.kept())) or "none"
            raise FolderError(
                f"{self.path.parent.parent} has no checkpoint of round {round_number} to go back to; kept are: {known}"
            )
        self.read(round_number)
        write_atomically(self.path, self._of(round_number).read_bytes(), private=True)
        for number in self.kept():
            if number > round_number:
                self._of(number).unlink()

    def _of(self, round_number: int) -> Path:
        return self.earlier / f"{round_number:08}.safetensors"


def round_of(found: Decoded) -> int:
    """Give the round that a checkpoint is of."""
    try:
        return found.facts.whole("round", least=0)
    except MessageError as error:
        raise FolderError(f"this is no run's checkpoint: {error}") from error
