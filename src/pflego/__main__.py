"""The pflego command, and `python -m pflego`: Ctrl-C is minded from the first import on, then the command line runs."""

from __future__ import annotations

import os
import signal
from types import FrameType

_STOPPED = 130  # the status that shells give to what was interrupted


def main() -> None:
    """Run the command line."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a parent has it ignored
        signal.signal(signal.SIGINT, _interrupt)
    from pflego.cli import main as command_line

    command_line()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Stop; at once where a module is being imported.

    There the exception may be swallowed (PyTorch looks from C++ whether NumPy can be imported, and goes on with what
    there is), and the program would run with half a module. Nothing is lost: what a run keeps is safe at any moment.
    """
    place = frame
    while place is not None:
        if place.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, b"\npflego: stopped\n")
            os._exit(_STOPPED)
        place = place.f_back
    signal.default_int_handler(number, frame)


if __name__ == "__main__":
    main()
