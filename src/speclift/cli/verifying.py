"""verify: did speculation change what the server says?"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from speclift.bench.ask import Ask
from speclift.cli.options import DryRun, Json, Markdown, takes_ask
from speclift.cli.screens import (
    require_markdown_place,
    screen,
    write_commands,
    write_json,
    write_markdown,
)
from speclift.core.errors import UsageError

# numpy, scipy and rich are imported where they are used: --help must not wait for them.

DOCUMENT = "verify.json"
EXIT_CODES = {"pass": 0, "inconclusive": 5, "fail": 6}

Detect = Annotated[
    float | None,
    typer.Option(metavar="P", help="Smallest change of a token's probability to detect; default: 0.02."),
]


@takes_ask
def verify_command(
    ask: Ask,
    *,
    detect: Detect = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    markdown: Markdown = None,
) -> None:
    """Does speculation change the output? Rounding does not count. Exit code 0 unchanged, 6 changed, 5 undecided."""
    from speclift.bench.opening import wherever_it_runs
    from speclift.cli.narration import Narrator
    from speclift.lossless.document import verify_document
    from speclift.lossless.gate_answer import gate_answer
    from speclift.verbs.verify import depth_for, keep_gate_document, prepare_gate, run_gate
    from speclift.views.answer_terminal import AnswerScreen
    from speclift.views.lossless import STYLES, gate_view
    from speclift.views.markdown import verify_markdown

    if ask.resume:
        raise UsageError("verify cannot be resumed", hint="run it again; it takes minutes")
    require_markdown_place(markdown, as_json=as_json)
    narrator = Narrator(screen(stderr=True))
    unused = _unused(ask)
    if unused:
        narrator.say(f"verify compares answers, not times: {', '.join(unused)} have no effect")
    if dry_run:
        depth = depth_for(ask, detect)
        prepared = wherever_it_runs(
            replace(ask, fetches=False),
            narrator,
            lambda asked, observer: prepare_gate(asked, observer, depth),
        )
        commands = {arm.name: prepared.engine.command(arm, port=0) for arm in prepared.plan.arms}
        write_commands(commands, as_json=as_json)
        return
    gate = run_gate(ask, narrator, detect=detect)
    document = verify_document(gate, ask.argv)
    if as_json:
        write_json(document)
    write_markdown(verify_markdown(document), markdown)
    if ask.study is not None:
        kept = keep_gate_document(ask.study / DOCUMENT, gate, ask)
        narrator.say(f"saved to {kept}")
    answer = AnswerScreen(gate_answer(gate, ask.argv), style=STYLES[gate.result])
    answer.print_above(narrator.console)
    narrator.console.print(gate_view(gate))
    answer.print_below(narrator.console)
    narrator.say("--json has every check and finding")
    raise typer.Exit(EXIT_CODES[gate.result])


def _unused(ask: Ask) -> list[str]:
    """Shared flags that were given and mean nothing to a comparison of answers."""
    ordinary = Ask()
    given = {
        "--launches": ask.launches != ordinary.launches,
        "--workers": ask.workers != ordinary.workers,
        "--side-by-side": ask.side_by_side is not None,
        "--min-speedup": ask.goals.min_speedup != ordinary.goals.min_speedup,
        "--metric": ask.goals.metric != ordinary.goals.metric,
        "--slo": bool(ask.goals.slos),
        "--tail-tolerance": ask.goals.tail_tolerance != ordinary.goals.tail_tolerance,
    }
    return [flag for flag, is_given in given.items() if is_given]
