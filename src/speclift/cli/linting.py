"""lint: what became of a serving command, and what to type today."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from speclift.cli.screens import Json, screen, write_json

if TYPE_CHECKING:
    from speclift.linter.report import LintReport

EXIT_ERRORS = 4


def lint_command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE | - | -- COMMAND…", help="A file, standard input, or a command after --."
        ),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="NAME", help="vllm or llamacpp; default: detected from the text.")
    ] = None,
    engine_version: Annotated[
        str | None,
        typer.Option(metavar="X", help="Such as 0.24.0, 0.32.0+cpu or b9000; default: the newest known."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check the flags of a vLLM or llama.cpp command, code or config; print today's form. Runs nothing."""
    from speclift.core.document import plain_object
    from speclift.core.errors import UsageError
    from speclift.linter.report import lint_document
    from speclift.verbs.lint import lint_arguments

    if not words:
        raise UsageError("nothing to lint", hint="give a file, - for standard input, or a command after --")
    report = lint_arguments(words, engine=engine, engine_version=engine_version)
    if as_json:
        write_json(plain_object(lint_document(report)))
    else:
        _show(report)
    raise typer.Exit(0 if report.ok else EXIT_ERRORS)


def _show(report: LintReport) -> None:
    """Findings and the other forms are narrative; the commands alone are data, so that they can be piped."""
    from speclift.linter.report import lint_answer
    from speclift.linter.row_rules import folded_command
    from speclift.linter.rows import dotted
    from speclift.views.answer_terminal import AnswerScreen
    from speclift.views.lint_terminal import (
        STYLES,
        lint_view,
        shown_lines,
        translation_notes,
    )

    console = screen(stderr=True)
    AnswerScreen(lint_answer(report), style=STYLES[report.ok]).print_above(console)
    for server in (report, *report.others):
        console.print(lint_view(server))
        today = server.translated
        if today is None:
            continue
        if today.notes:
            console.print(translation_notes(today))
        console.print(f"\nCommand for {server.title} {dotted(server.newest)}", style="bold", markup=False)
        if today.source:
            command = folded_command(today.source)
            # Data where somebody reads it from a pipe, for the eye otherwise.
            shown = shown_lines(command) if sys.stdout.isatty() else shown_lines(command, limit=None)
            sys.stdout.write(f"{shown}\n")
            sys.stdout.flush()
        for title, text in (("From Python", today.python), (today.yaml_is, today.yaml)):
            if text:
                console.print(f"\n{title}", style="bold")
                console.print(shown_lines(text.rstrip()), markup=False, highlight=False, soft_wrap=True)
