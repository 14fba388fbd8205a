"""The way in: signals are heeded before anything slow is imported."""

from speclift.pipeline.interrupts import watching


def main() -> None:
    watching.watch()
    from speclift.cli.main import main as command_line

    watching.begin()
    command_line()


if __name__ == "__main__":
    main()
