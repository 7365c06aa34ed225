"""The command `pyridgefill`, also as `python -m pyridgefill`."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from pyridgefill.files import remove_unfinished


class Interrupts:
    """Notes Ctrl-C and goes on as Python does: modules that are loaded just then turn it into other errors."""

    def __init__(self) -> None:
        self.seen = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        signal.default_int_handler(number, frame)


def main() -> None:
    """Run the command line and end the process; errors are one line, and Ctrl-C ends with 130 at any time."""
    interrupts = Interrupts()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupts)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        from pyridgefill.cli.main import run
    except (KeyboardInterrupt, Exception):
        if not interrupts.seen:
            raise
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(run(sys.argv[1:], interrupted=lambda: interrupts.seen))


def _terminate(number: int, _frame: FrameType | None) -> None:
    # no exception: one that is raised while the library calls back would be lost
    remove_unfinished()
    if (server := sys.modules.get("pyridgefill.server")) is not None:
        server.stop_servers()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    main()
