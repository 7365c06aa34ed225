"""The command `pyridgefill`, also as `python -m pyridgefill`."""

from __future__ import annotations

import signal
import sys
from types import FrameType


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
    # an exit like any other, so that temporary files are deleted
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        from pyridgefill.cli.main import run
    except (KeyboardInterrupt, ImportError):
        if not interrupts.seen:
            raise
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(run(sys.argv[1:], interrupted=lambda: interrupts.seen))


if __name__ == "__main__":
    main()
