"""The way in: signals are heeded before anything slow is imported."""

import sys

from speclift.bench.interrupts import EXIT_INTERRUPTED, watching


def main() -> None:
    watching.watch()
    from speclift.cli.main import main as command_line

    try:
        watching.begin()
        command_line()
    except KeyboardInterrupt:
        # The signal came on the way in or on the way out.
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
