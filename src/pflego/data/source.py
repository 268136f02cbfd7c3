"""Files that a data set can be read from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import RLock

from pflego.data.blocks import Array, Blocks
from pflego.errors import DataError, UserError

# NumPy reads a header with ast, whose depth Python 3.11 counts for all threads together and then finds wrong.
_one_thread_at_a_time = RLock()


@dataclass(frozen=True)
class Source:
    """Where a data set was found: its files, and how to read arrays from them."""

    files: Sequence[Path]
    read: Callable[[], Iterator[tuple[str, Blocks]]]

    @property
    def place(self) -> Path:
        """The file, or the folder that the files are in."""
        return self.files[0] if len(self.files) == 1 else self.files[0].parent

    def arrays(self) -> dict[str, Array]:
        """Read them all into memory."""
        return {name: blocks.array() for name, blocks in self.read()}


@contextmanager
def reading(file: object) -> Iterator[None]:
    """Say of a file whatever goes wrong in reading it; one thread reads at a time."""
    try:
        with _one_thread_at_a_time:
            yield
    except UserError:
        raise
    except (
        Exception
    ) as error:  # a damaged file fails in a dozen ways: gzip, zipfile, lzma, pickle and NumPy have their own
        raise DataError(f"cannot read {file}: {error or type(error).__name__}") from error
