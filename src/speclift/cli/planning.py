"""plan: before anything runs."""

from __future__ import annotations

from collections.abc import Mapping

import typer

from speclift.bench.ask import PlanAsk
from speclift.cli.options import Flags, takes
from speclift.cli.screens import (
    STDOUT,
    Json,
    Markdown,
    require_markdown_place,
    screen,
    write_json,
    write_markdown,
)
from speclift.core.flags import assembled


@takes(Flags(PlanAsk), as_parameter="asked", reads_line=True)
def plan_command(asked: Mapping[str, object], *, as_json: Json = False, markdown: Markdown = None) -> None:
    """Predict before anything runs: does it fit, does the draft match, is it faster?"""
    from speclift.planner.plan import plan_answer, plan_document
    from speclift.verbs.plan import DOES_NOT_FIT, plan
    from speclift.views.markdown import plan_markdown

    require_markdown_place(markdown, as_json=as_json)
    found = plan(assembled(PlanAsk, asked))
    write_markdown(plan_markdown(found), markdown)
    if as_json:
        write_json(plan_document(found))
    else:
        from speclift.views.answer_terminal import AnswerScreen
        from speclift.views.plan_terminal import STYLES, plan_view

        console = screen(stderr=markdown == STDOUT)
        answer = AnswerScreen(plan_answer(found), style=STYLES[found.fits and found.runs])
        answer.print_above(console)
        console.print(plan_view(found))
        answer.print_below(console)
    if not (found.fits and found.runs):
        raise typer.Exit(DOES_NOT_FIT)
