"""Entry point: verbs registered, errors printed in one place, exit codes kept."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Annotated

import typer

from speclift import __version__
from speclift.bench.interrupts import EXIT_INTERRUPTED, watching
from speclift.cli.doctor import doctor_command
from speclift.cli.exporting import export_command
from speclift.cli.gateway import gateway_command
from speclift.cli.help_page import PAGE, Verb, example
from speclift.cli.linting import lint_command
from speclift.cli.measuring import (
    compare_command,
    decide_command,
    measure_command,
    report_command,
    tune_command,
)
from speclift.cli.models import app as models_app
from speclift.cli.planning import plan_command
from speclift.cli.replaying import replay_command
from speclift.cli.screens import screen
from speclift.cli.verifying import verify_command
from speclift.cli.watching import watch_command
from speclift.core.errors import EngineError, OperatingError, SpecliftError, UsageError, WillNotRun
from speclift.core.quantities import printable_lines

EXIT_OPERATING, EXIT_USAGE, EXIT_WILL_NOT_RUN = 1, 2, 4

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=PAGE,
    epilog=example("speclift decide"),
)
# The whole job, what needs no engine, its parts, the rest.
for name, command, shown in (
    (
        "decide",
        decide_command,
        "speclift decide --segment summarise --segment chat --method ngram --budget 10m",
    ),
    (
        "plan",
        plan_command,
        "speclift plan --target llama-3.1-70b --target-quant fp8 --draft llama-3.1-8b --gpu h200",
    ),
    ("lint", lint_command, "speclift lint -- vllm serve MODEL --speculative-model DRAFT"),
    ("replay", replay_command, "speclift replay requests.jsonl --method ngram --method ngram:map-k --k 1..8"),
    (
        "measure",
        measure_command,
        "speclift measure --method ngram --k 8 --concurrency 1,4 --study studies/mine",
    ),
    ("tune", tune_command, "speclift tune --method ngram --concurrency 1,4 --budget 20m"),
    ("verify", verify_command, "speclift verify --method ngram --temperature 0,1"),
    ("compare", compare_command, "speclift compare studies/mine --min-speedup 1.2"),
    ("report", report_command, "speclift report studies/mine --out report.html"),
    ("watch", watch_command, "speclift watch http://127.0.0.1:8000 --study studies/mine"),
    (
        "gateway",
        gateway_command,
        "speclift gateway --spec http://127.0.0.1:8000 --plain http://127.0.0.1:8001 --policy studies/mine",
    ),
    ("export", export_command, "speclift export studies/mine --to prometheus-rules --out rules/"),
    ("doctor", doctor_command, "speclift doctor"),
):
    app.command(name, cls=Verb, epilog=example(shown))(command)
app.add_typer(models_app, name="models")


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"speclift {__version__}\n")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Decides whether speculative decoding pays for a self-hosted LLM. No GPU is needed for a first answer."""


def main() -> None:
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except UsageError as error:
        sys.exit(_complain(error, EXIT_USAGE))
    except WillNotRun as error:
        sys.exit(_complain(error, EXIT_WILL_NOT_RUN))
    except OperatingError as error:
        sys.exit(_complain(error, EXIT_OPERATING))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except OSError as error:
        sys.exit(_unwritten(error))
    except Exception:
        # A signal in the middle of an import or of a library's code may come out as any error.
        if not watching.is_interrupted:
            raise
        sys.exit(EXIT_INTERRUPTED)


def _unwritten(error: OSError) -> int:
    """Standard output that takes no more: a full disk, a reader that went away. Files are dealt with where they are
    written."""
    with contextlib.suppress(OSError, ValueError):
        # What is still in the buffer would be tried once more when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return EXIT_OPERATING
    where = f" ({error.filename})" if error.filename else ""
    words = OperatingError(
        f"a system call failed: {error.strerror or error}{where}",
        hint="is the disk full? What was measured is in the study",
    )
    return _complain(words, EXIT_OPERATING)


def _complain(error: SpecliftError, code: int) -> int:
    console = screen(stderr=True)
    console.print(f"error: {printable_lines(str(error))}", style="bold red", markup=False)
    if isinstance(error, EngineError) and error.log_tail:
        console.print(printable_lines(error.log_tail[-1500:]), style="dim", markup=False)
    if error.hint:
        console.print(f"\nhint: {printable_lines(error.hint)}", markup=False)
    return code


if __name__ == "__main__":
    main()
