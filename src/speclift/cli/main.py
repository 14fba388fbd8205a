"""Entry point: verbs registered, errors printed in one place, exit codes kept."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Annotated

import typer

from speclift import __version__
from speclift.bench.interrupts import EXIT_INTERRUPTED, watching
from speclift.cli.help_page import PAGE, VerbPlace, Verbs, example
from speclift.cli.screens import screen
from speclift.core.address import without_secrets
from speclift.core.errors import EngineError, OperatingError, SpecliftError, UsageError, WillNotRun
from speclift.core.quantities import printable_lines

SERVICES = {"watch", "gateway"}
EXIT_OPERATING, EXIT_USAGE, EXIT_WILL_NOT_RUN = 1, 2, 4

# One speclift.toml serves every measuring verb, with the flags of all of them.
_MEASURING = ("speclift.cli.measuring", "speclift.cli.verifying")
# The whole job, what needs no engine, its parts, the rest.
VERBS = {
    "decide": VerbPlace(
        modules=_MEASURING,
        shown="speclift decide --segment summarise --segment chat --method ngram --budget 10m",
        short="Does speculative decoding pay here? Measures it and decides.",
    ),
    "plan": VerbPlace(
        modules=("speclift.cli.planning",),
        shown="speclift plan --target llama-3.1-70b --target-quant fp8 --draft llama-3.1-8b --gpu h200",
        short="Predict before anything runs: does it fit, is it faster?",
    ),
    "lint": VerbPlace(
        modules=("speclift.cli.linting",),
        shown="speclift lint -- vllm serve MODEL --speculative-model DRAFT",
        short="Check the flags of a vLLM or llama.cpp command, code or config.",
    ),
    "replay": VerbPlace(
        modules=("speclift.cli.replaying",),
        shown="speclift replay requests.jsonl --method ngram --method ngram:map-k --k 1..8",
        short="Estimate the accepted length of n-gram drafts on logged traffic.",
    ),
    "measure": VerbPlace(
        modules=_MEASURING,
        shown="speclift measure --method ngram --k 8 --concurrency 1,4 --study studies/mine",
        short="Measure configurations and store the records; gives no verdict.",
    ),
    "tune": VerbPlace(
        modules=_MEASURING,
        shown="speclift tune --method ngram --concurrency 1,4 --budget 20m",
        short="Find the fastest configuration: measure some, predict the rest.",
    ),
    "verify": VerbPlace(
        modules=_MEASURING[::-1],
        shown="speclift verify --method ngram --temperature 0,1",
        short="Does speculation change the output? Rounding does not count.",
    ),
    "compare": VerbPlace(
        modules=_MEASURING,
        shown="speclift compare studies/mine --min-speedup 1.2",
        short="Give the verdict on finished studies without measuring again.",
    ),
    "report": VerbPlace(
        modules=_MEASURING,
        shown="speclift report studies/mine --out report.html",
        short="Write the report of a study: one HTML page that works offline.",
    ),
    "watch": VerbPlace(
        modules=("speclift.cli.watching",),
        shown="speclift watch http://127.0.0.1:8000 --study studies/mine",
        short="Does speculation still pay on running servers?",
    ),
    "gateway": VerbPlace(
        modules=("speclift.cli.gateway",),
        shown="speclift gateway --spec http://127.0.0.1:8000 --plain http://127.0.0.1:8001"
        " --policy studies/mine",
        short="Send each request to the pool where it is fastest.",
    ),
    "export": VerbPlace(
        modules=("speclift.cli.exporting", *_MEASURING),
        shown="speclift export studies/mine --to prometheus-rules --out rules/",
        short="Export the winner's deployment, alert rules and a dashboard.",
    ),
    "doctor": VerbPlace(
        modules=("speclift.cli.doctor",),
        shown="speclift doctor",
        short="Show engines, GPUs and models, and how noisy this machine is.",
    ),
    "models": VerbPlace(
        modules=("speclift.cli.models",),
        shown="speclift models list",
        short="Models in speclift's cache, and GGUF files by path.",
    ),
}


class _Speclift(Verbs):
    places = VERBS


app = typer.Typer(
    cls=_Speclift,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=PAGE,
    epilog=example("speclift decide"),
)


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
        _require_stdout()
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


def _require_stdout() -> None:
    """OperatingError where it is closed, before anything is measured for nobody; services go on without it."""
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
    if sys.stdout is None:
        if not SERVICES.intersection(sys.argv[1:2]):
            raise OperatingError("standard output is closed, and the answer goes there")
        sys.stdout = os.fdopen(1, "w", closefd=False)


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
    console.print(f"error: {printable_lines(without_secrets(str(error)))}", style="bold red", markup=False)
    if isinstance(error, EngineError) and error.log_tail:
        console.print(printable_lines(without_secrets(error.log_tail[-1500:])), style="dim", markup=False)
    if error.hint:
        console.print(f"\nhint: {printable_lines(without_secrets(error.hint))}", markup=False)
    return code


if __name__ == "__main__":
    main()
