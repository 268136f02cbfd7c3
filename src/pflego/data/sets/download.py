"""Files fetched from where they are published: whole and checked, or not there.

Pooch checks and places them. A transfer that breaks off leaves <file>.part and goes on from it, at once or next time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

from pflego.errors import DataError, FolderError

if TYPE_CHECKING:
    from rich.progress import TaskID

Tell: TypeAlias = Callable[[int], None]

_CHUNK = 1 << 14  # bytes; of a transfer that breaks off, whole chunks are kept
_TIMEOUT = 30  # seconds without a byte
_BEYOND_THE_END = 416


@dataclass(frozen=True)
class Remote:
    """A published file: its name, where it can be had, its length in bytes and its checksum."""

    name: str
    urls: Sequence[str]
    size: int
    sha256: str


def fetch(remotes: Sequence[Remote], folder: Path) -> None:
    """Fetch files into a folder, with a bar in a terminal. Those that are there and right are left alone."""
    import pooch
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    pooch.get_logger().setLevel("WARNING")  # it would announce every file
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        for remote in remotes:
            task = bar.add_task(remote.name, total=remote.size)

            def tell(done: int, task: TaskID = task) -> None:
                bar.update(task, completed=done)

            _fetch(remote, folder, tell)
            tell(remote.size)


def _fetch(remote: Remote, folder: Path, tell: Tell) -> None:
    """Try one address after the other, each for as long as it brings the file forward."""
    import pooch
    from requests import RequestException

    part = folder / f"{remote.name}.part"
    reasons = []
    for url in remote.urls:
        may_restart = goes_on = True
        while goes_on:
            before, goes_on = _length(part), False
            try:
                pooch.retrieve(
                    url,
                    f"sha256:{remote.sha256}",
                    remote.name,
                    folder,
                    downloader=_Transfer(part, remote.size, tell),
                )
            except RequestException as error:
                goes_on = _length(part) > before
                reason = _reason(url, error)
            except ValueError:  # a wrong checksum; perhaps of an old part, which is gone now
                goes_on, may_restart = may_restart and before > 0, False
                reason = f"{url} has another checksum than the published file, and was dropped"
            except OSError as error:
                raise FolderError(
                    f"cannot write to the folder {folder}: {error.strerror or error}"
                ) from error
            else:
                return
        reasons.append(reason)
    raise DataError("; ".join(reasons))


class _Transfer:
    """A downloader for Pooch that goes on where the part that is there ends."""

    def __init__(self, part: Path, size: int, tell: Tell) -> None:
        self._part, self._size, self._tell = part, size, tell

    def __call__(self, url: str, output_file: str, pooch: object, check_only: bool = False) -> None:
        """Transfer a file. Pooch checks it afterwards."""
        if (have := _length(self._part)) < self._size:
            self._transfer(url, have)
        self._part.replace(output_file)

    def _transfer(self, url: str, have: int) -> None:
        import requests

        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
        with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as response:
            if response.status_code == _BEYOND_THE_END:
                self._part.unlink()
            response.raise_for_status()
            continues = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
            with self._part.open("ab" if continues else "wb") as file:
                for chunk in response.iter_content(_CHUNK):
                    file.write(chunk)
                    self._tell(file.tell())
        if _length(self._part) < self._size:
            raise requests.exceptions.ChunkedEncodingError


def _length(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _reason(url: str, error: Exception) -> str:
    """Say in a few words why an address did not do."""
    from requests import HTTPError, Timeout
    from requests.exceptions import ChunkedEncodingError

    if isinstance(error, HTTPError) and error.response is not None:
        return f"{url} answers {error.response.status_code} {error.response.reason}"
    host = urlsplit(url).netloc
    if isinstance(error, ChunkedEncodingError):
        return f"the transfer from {host} broke off"
    return f"{host} does not answer" if isinstance(error, Timeout) else f"no connection to {host}"
