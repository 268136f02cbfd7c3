"""Flower's SuperNode as a child of this command: it ends with it.

python -m pflego_light.flower.supernode PARENT OPTIONS... loads it, and begins when a byte arrives on its
standard input.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

SETTINGS = {  # what Flower would otherwise tell its makers, install, and wait for
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
_ENDING = 20.0  # seconds that it may take to say goodbye
_POLL = "PFLEGO_SUPERNODE_POLL"


@contextmanager
def supernode(options: Sequence[str], *, poll: float) -> Iterator[subprocess.Popen[bytes]]:
    """Load a SuperNode; it is ended when this block is left, and when this process ends.

    poll: seconds between two looks for messages.
    """
    words = [sys.executable, "-m", __name__, str(os.getpid()), *options]
    started = subprocess.Popen(words, stdin=subprocess.PIPE, env={**os.environ, **SETTINGS, _POLL: str(poll)})
    try:
        yield started
    finally:
        _close(started)
        if started.poll() is None:
            started.terminate()
            try:
                started.wait(_ENDING)
            except subprocess.TimeoutExpired:
                started.kill()
        started.wait()


def begin(loaded: subprocess.Popen[bytes]) -> None:
    """Let a SuperNode that was loaded do its work."""
    assert loaded.stdin is not None
    loaded.stdin.write(b"\n")
    _close(loaded)


def _close(loaded: subprocess.Popen[bytes]) -> None:
    assert loaded.stdin is not None
    with suppress(BrokenPipeError):  # it has ended already
        loaded.stdin.close()


def main() -> None:
    """Become a SuperNode."""
    signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # until it has a handler of its own: no traceback while it loads
    from flwr.supercore.app_utils import start_parent_process_monitor
    from flwr.supernode import start_client_internal as loop
    from flwr.supernode.cli.flower_supernode import flower_supernode

    parent, sys.argv = int(sys.argv[1]), ["flower-supernode", *sys.argv[2:]]
    start_parent_process_monitor(parent)
    # Flower has no option for its waits: its loop is given a clock whose sleeps are short
    poll = float(os.environ[_POLL])
    clock = SimpleNamespace(**{**vars(time), "sleep": lambda seconds: time.sleep(min(seconds, poll))})
    vars(loop)["time"] = clock
    vars(loop)["_pull_and_store_message"] = dropped_with_its_run(vars(loop)["_pull_and_store_message"])
    if sys.stdin.buffer.read(1):
        flower_supernode()


def dropped_with_its_run(take: Callable[..., int | None]) -> Callable[..., int | None]:
    """Let a SuperNode drop a message with its task where the run ends while the message is fetched.

    Flower keeps the task, and the worker that gets it waits for the rest of the message for ever.
    """
    from flwr.supercore.run import RunNotRunningException

    def failing(fetch: Callable[..., object]) -> Callable[..., object]:
        def fetched(*given: object) -> object:
            try:
                return fetch(*given)
            except RunNotRunningException as error:  # no Exception, so that Flower's cleaning up passes it by
                raise RuntimeError("its run has ended") from error

        return fetched

    def taken(**given: Any) -> int | None:
        fetching = {name: failing(given[name]) for name in ("pull_object", "confirm_message_received")}
        return take(**{**given, **fetching})

    return taken


if __name__ == "__main__":
    main()
