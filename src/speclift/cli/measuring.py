"""decide, tune, measure and compare."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from speclift.bench.ask import Ask
from speclift.bench.interrupts import EXIT_INTERRUPTED
from speclift.cli.options import Flags, takes, takes_ask
from speclift.cli.screens import (
    STDOUT,
    DryRun,
    Json,
    Markdown,
    require_markdown_place,
    screen,
    write_commands,
    write_json,
    write_markdown,
)
from speclift.core.goals import Goals

if TYPE_CHECKING:
    from rich.console import Console

    from speclift.cli.narration import Narrator
    from speclift.verbs.measure import Measured
    from speclift.verdict.document import VerdictDocument

# numpy, scipy and rich are imported where they are used: --help must not wait for them.

REPORT = "report.html"

Out = Annotated[Path | None, typer.Option(metavar="FILE", help="HTML report; default: STUDY/report.html.")]


Verify = Annotated[
    str,
    typer.Option(
        metavar="HOW",
        help="Check that the output is the same: quick, full (no verdict without proof) or off.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Where a result is to stand beside the screen."""

    as_json: bool
    markdown: str | None
    # The page; None where none is written.
    out: Path | None

    def screen(self) -> Console:
        """stdout, unless a document stands there alone."""
        return screen(stderr=self.as_json or self.markdown == STDOUT)

    def require_places(self, *, prompts: Path | None = None) -> None:
        """Before anything is measured."""
        from speclift.studies.outputs import require_report_place

        require_markdown_place(self.markdown, as_json=self.as_json)
        if self.out is not None:
            require_report_place(self.out, prompts=prompts)


NoVerify = Annotated[bool, typer.Option("--no-verify", help="Same as --verify off.")]


def _deciding_command(verb: str, words: str) -> Callable[..., None]:
    @takes_ask
    def command(
        ask: Ask,
        *,
        verify: Verify = "quick",
        no_verify: NoVerify = False,
        dry_run: DryRun = False,
        as_json: Json = False,
        markdown: Markdown = None,
        out: Out = None,
    ) -> None:
        ask = replace(ask, verify="off" if no_verify else verify)
        _deciding(ask, verb, dry_run=dry_run, to=Outputs(as_json=as_json, markdown=markdown, out=out))

    command.__doc__ = words
    return command


decide_command = _deciding_command(
    "decide", "Does speculative decoding pay here? Measures the best setup against the baseline."
)
tune_command = _deciding_command(
    "tune", "Find the fastest configuration: measure some, predict the rest, confirm the best."
)


@takes_ask
def measure_command(ask: Ask, *, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Measure configurations and store the records; gives no verdict."""
    from speclift.cli.narration import Narrator
    from speclift.verbs.measure import measured
    from speclift.verdict.document import measure_document
    from speclift.views.terminal import cells_table, findings_view

    narrator = Narrator(screen(stderr=True))
    if dry_run:
        _print_commands(ask, narrator, as_json=as_json)
        return
    with narrator.live():
        done = measured(ask, narrator)
    judgement = done.judgement
    if as_json:
        write_json(measure_document(judgement))
    else:
        answer = screen(stderr=False)
        answer.print(cells_table(judgement.cells))
        answer.print(findings_view(judgement.findings))
    _end(done, 0)


@takes(Flags(Goals, are_optional=True), as_parameter="changed")
def compare_command(
    changed: Mapping[str, object],
    *,
    studies: Annotated[
        list[Path],
        typer.Argument(
            metavar="STUDY",
            help="One study, several with the same settings, or one before an upgrade and one after.",
        ),
    ],
    as_json: Json = False,
    markdown: Markdown = None,
    out: Out = None,
) -> None:
    """Give the verdict on finished studies without measuring again. Goals not given here are the first study's.

    Two studies of unlike engine versions: what the upgrade changed, acceptance or the cost of a step."""
    from speclift.cli.exit_codes import EXIT_CODES
    from speclift.verbs.judged import compared

    to = Outputs(as_json=as_json, markdown=markdown, out=out)
    to.require_places()
    document = compared(studies, changed)
    _show_verdict(document, to)
    raise typer.Exit(EXIT_CODES[document.verdict])


def report_command(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="A study directory.")],
    markdown: Markdown = None,
    out: Out = None,
) -> None:
    """Write the report of a study: one HTML page that works offline."""
    from speclift.studies.outputs import relative
    from speclift.verbs.judged import verdict_of, write_report
    from speclift.views.markdown import verdict_markdown

    path = out or study / REPORT
    Outputs(as_json=False, markdown=markdown, out=out).require_places()
    document = verdict_of(study)
    write_report(document, path)
    write_markdown(verdict_markdown(document), markdown)
    # Where the summary is on stdout, nothing else is.
    where = sys.stderr if markdown == STDOUT else sys.stdout
    where.write(f"{relative(path)}\n")


def _deciding(ask: Ask, verb: str, *, dry_run: bool, to: Outputs) -> None:
    from speclift.bench.search_study import SearchStopped
    from speclift.cli.exit_codes import EXIT_CODES
    from speclift.cli.narration import Narrator
    from speclift.studies.outputs import relative
    from speclift.verbs.decide import decided
    from speclift.views.tuning_terminal import stopped_view

    narrator = Narrator(screen(stderr=True))
    if dry_run:
        _print_commands(ask, narrator, as_json=to.as_json, verb=verb)
        return
    to.require_places(prompts=ask.prompts)
    try:
        with narrator.live():
            done = decided(ask, narrator, verb=verb)
    except SearchStopped as stopped:
        if stopped.so_far is not None:
            to.screen().print(stopped_view(stopped.so_far))
        narrator.say(f"stopped; continue with: speclift {verb} --resume --study {relative(stopped.path)}")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    document = done.document
    to = replace(to, out=to.out or Path(document.study) / REPORT)
    _show_verdict(document, to, shows_search=verb == "tune")
    _end(done, EXIT_CODES[document.verdict] if verb == "decide" else 0)


def _end(done: Measured, code: int) -> None:
    """After what was measured was shown: with its code, unless something ended the work early."""
    if isinstance(done.ended_by, KeyboardInterrupt):
        raise typer.Exit(EXIT_INTERRUPTED)
    if done.ended_by is not None:
        raise done.ended_by
    raise typer.Exit(code)


def _show_verdict(document: VerdictDocument, to: Outputs, *, shows_search: bool = False) -> None:
    """The answer, the table, and where the rest is."""
    from speclift.core.results import Upgrade
    from speclift.studies.outputs import relative
    from speclift.verbs.judged import write_report
    from speclift.views.answer_terminal import AnswerScreen
    from speclift.views.markdown import verdict_markdown
    from speclift.views.terminal import STYLES, line_view, metrics_line, result_table, upgrade_view
    from speclift.views.tuning_terminal import search_view

    console = to.screen()
    if to.as_json:
        write_json(document)
    write_markdown(verdict_markdown(document), to.markdown)
    if isinstance(document.upgrade, Upgrade):
        console.print(upgrade_view(document.upgrade))
    assert document.answer is not None
    answer = AnswerScreen(document.answer, style=STYLES[document.verdict])
    answer.print_above(console)
    console.print(result_table(document))
    if document.by_metric:
        console.print(metrics_line(document))
    if shows_search and document.tuning is not None:
        console.print(search_view(document.tuning, best=document.tuning.best))
    answer.print_below(console)
    if document.line is not None:
        console.print(line_view(document.line))
    if to.out is not None:
        write_report(document, to.out)
        where = f"report: {relative(to.out)}"
    else:
        where = f"the rest is in the report: speclift report {shlex.quote(document.study)}"
    console.print(where, markup=False, highlight=False)


def _print_commands(ask: Ask, narrator: Narrator, *, as_json: bool, verb: str = "measure") -> None:
    from speclift.bench.opening import planned

    prepared = planned(replace(ask, fetches=False), narrator, verb=verb)
    commands = {arm.name: prepared.engine.command(arm, port=0) for arm in prepared.plan.arms}
    write_commands(commands, as_json=as_json)
