"""The way in: signals are heeded before anything slow is imported."""

import os
import sys

from speclift.bench.interrupts import EXIT_INTERRUPTED, watching


def main() -> None:
    hold_standard_files()
    watching.watch()
    from speclift.cli.main import main as command_line

    try:
        watching.begin()
        command_line()
    except KeyboardInterrupt:
        # The signal came on the way in or on the way out.
        sys.exit(EXIT_INTERRUPTED)


def hold_standard_files() -> None:
    """Where one of the first three is closed, the next file that is opened would take its place and its bytes."""
    while (file := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(file, True)
    os.close(file)


if __name__ == "__main__":
    main()
