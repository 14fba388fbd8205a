"""plan: before anything runs."""

from __future__ import annotations

from collections.abc import Mapping

import typer

from speclift.bench.ask import PlanAsk
from speclift.cli.options import Flags, Json, takes
from speclift.cli.screens import screen, write_json
from speclift.core.flags import assembled


@takes(Flags(PlanAsk), as_parameter="asked", reads_line=True)
def plan_command(asked: Mapping[str, object], *, as_json: Json = False) -> None:
    """Predict before anything runs: does it fit, does the draft match, is it faster?"""
    from speclift.planner.plan_document import plan_document
    from speclift.verbs.plan import DOES_NOT_FIT, plan

    found = plan(assembled(PlanAsk, asked))
    document = plan_document(found)
    if as_json:
        write_json(document)
    else:
        from speclift.views.plan_terminal import plan_view

        screen(stderr=True).print(plan_view(document))
    if not (found.fits and found.runs):
        raise typer.Exit(DOES_NOT_FIT)
