"""verify: did speculation change what the server says?"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from speclift.bench.ask import Ask
from speclift.bench.interrupts import EXIT_INTERRUPTED
from speclift.cli.options import takes_ask
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
from speclift.core.flags import read_duration_s

if TYPE_CHECKING:
    from speclift.cli.narration import Narrator
    from speclift.verbs.verify import Verified

# numpy, scipy and rich are imported where they are used: --help must not wait for them.

DOCUMENT = "verify.json"
EXIT_CODES = {"pass": 0, "inconclusive": 5, "fail": 6}

Detect = Annotated[
    float | None,
    typer.Option(metavar="P", help="Smallest change of a token's probability to detect; default: 0.02."),
]

Soak = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Then put the servers under load for so long, such as 10m, with --concurrency requests at once.",
    ),
]

LeaveOut = Annotated[
    str,
    typer.Option(
        metavar="KINDS",
        help="Kinds of requests not to send, such as schema,grammar: a server without them may end.",
    ),
]

Junit = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write every check and fault as JUnit XML, for CI.")
]


@takes_ask
def verify_command(
    ask: Ask,
    *,
    detect: Detect = None,
    soak: Soak = None,
    leave_out: LeaveOut = "",
    junit: Junit = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    markdown: Markdown = None,
) -> None:
    """Does speculation change the output? Rounding does not count. Exit code 0 unchanged, 6 changed, 5 undecided."""
    from speclift.bench.opening import wherever_it_runs
    from speclift.cli.narration import Narrator
    from speclift.studies.outputs import require_report_place, write_result
    from speclift.verbs.verify import (
        depth_for,
        prepare_gate,
        soak_commands,
        stored_document,
        verified,
        with_streams,
    )
    from speclift.views.junit import verify_junit

    soak_s = None if soak is None else read_duration_s(soak, "--soak")
    left_out = tuple(kind.strip() for kind in leave_out.split(",") if kind.strip())
    ask = with_streams(ask, soak_s)
    require_markdown_place(markdown, as_json=as_json)
    if junit is not None:
        require_report_place(junit, flag="--junit")
    narrator = Narrator(screen(stderr=True))
    unused = _unused(ask, soaks=soak is not None)
    if unused:
        narrator.say(f"verify compares answers, not times: {', '.join(unused)} have no effect")
    if dry_run:
        depth = depth_for(ask, detect, left_out)
        prepared = wherever_it_runs(
            replace(ask, fetches=False),
            narrator,
            lambda asked, observer: prepare_gate(asked, observer, depth),
        )
        commands = {arm.name: prepared.engine.command(arm, port=0) for arm in prepared.plan.arms}
        if soak_s is not None:
            commands |= soak_commands(ask, prepared, depth, soak_s=soak_s, besides=commands)
        write_commands(commands, as_json=as_json)
        return
    with narrator.live() if soak is not None else nullcontext():
        done = verified(ask, narrator, detect=detect, soak_s=soak_s, leave_out=left_out)
    _show(done, ask, narrator, as_json=as_json, markdown=markdown)
    if junit is not None:
        write_result(junit, verify_junit(stored_document(done, ask)))
    if done.gate.soak and done.gate.soak.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    raise typer.Exit(EXIT_CODES[done.gate.result])


def _show(done: Verified, ask: Ask, narrator: Narrator, *, as_json: bool, markdown: str | None) -> None:
    """The answer, the tables, and where the rest is."""
    from speclift.core.document import plain_object
    from speclift.lossless.gate_answer import gate_answer
    from speclift.verbs.verify import keep_gate_document
    from speclift.views.answer_terminal import AnswerScreen
    from speclift.views.gate_terminal import STYLES, gate_view, soak_view
    from speclift.views.markdown import verify_markdown

    gate, document = done.gate, done.document(ask.argv)
    if as_json:
        write_json(plain_object(document))
    write_markdown(verify_markdown(document), markdown)
    folder = ask.study or done.study
    if folder is not None:
        kept = keep_gate_document(folder / DOCUMENT, done, ask)
        narrator.say(f"saved to {kept}")
    console = screen(stderr=as_json or markdown == STDOUT)
    answer = AnswerScreen(gate_answer(gate, ask.argv), style=STYLES[gate.result])
    answer.print_above(console)
    if gate.soak:
        console.print(soak_view(gate.soak))
    console.print(gate_view(gate))
    answer.print_below(console)
    narrator.say("--json has every check and finding")


def _unused(ask: Ask, *, soaks: bool) -> list[str]:
    """Shared flags that were given and mean nothing to a comparison of answers."""
    ordinary = Ask()
    given = {
        "--launches": ask.launches != ordinary.launches and not soaks,
        "--workers": ask.workers != ordinary.workers,
        "--side-by-side": ask.side_by_side is not None,
        "--min-speedup": ask.goals.min_speedup != ordinary.goals.min_speedup,
        "--metric": ask.goals.metric != ordinary.goals.metric,
        "--slo": bool(ask.goals.slos),
        "--tail-tolerance": ask.goals.tail_tolerance != ordinary.goals.tail_tolerance,
    }
    return [flag for flag, is_given in given.items() if is_given]
