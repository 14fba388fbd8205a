"""The answer, its reasons, its table and its command as Markdown, for a pull request or a chat. Pure.

Names of arms and segments are somebody's text: none of it may draw a table, link, mention or run as HTML.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from speclift.core.answer import ShortAnswer, command_time
from speclift.core.quantities import printable
from speclift.core.results import Bounds
from speclift.lossless.gate import Gate, Soak, SoakResult
from speclift.planner.plan import Plan
from speclift.verdict.document import VerdictDocument
from speclift.views.page_figures import part_words

# Whatever Markdown, its tables and its dollar formulas give a meaning.
_MARKS = re.compile(r"([\\`*_\[\]#|~$])")
# What would begin a list within one.
_LEADING = re.compile(r"^(\d*)([-+.)])")
_NAME_CHARACTERS = 64
_COMMAND_CHARACTERS = 4000


def verdict_markdown(document: VerdictDocument) -> str:
    rows = [
        (
            "all traffic"
            if part is None
            else escaped(part_words(part.part, part.label), limit=_NAME_CHARACTERS),
            escaped(arm.arm, limit=_NAME_CHARACTERS),
            *_bounds(overall if part is None else part),
        )
        for arm in document.speedups
        for overall in (arm.overall,)
        if overall is not None
        for part in (None, *arm.parts)
    ]
    metric = next((arm.overall.metric for arm in document.speedups if arm.overall), "")
    return _page(
        document.answer,
        _table(("traffic", "arm", f"{metric} speedup", "95 % interval"), rows),
        _table(
            ("metric", "speedup", "95 % interval"),
            [(escaped(speedup.metric), *_bounds(speedup)) for speedup in document.by_metric],
        ),
        _configuration(document),
        f"speclift {escaped(document.provenance.speclift)}, study {escaped(document.study)}",
    )


def verify_markdown(document: Gate) -> str:
    rows = [
        (
            escaped(arm.arm, limit=_NAME_CHARACTERS),
            escaped(check.name),
            str(check.answers),
            str(check.events),
            f"{check.per_1000_tokens:.1f}",
        )
        for arm in document.arms
        for check in arm.greedy.checks
        if check.answers
    ]
    return _page(
        document.answer or None,
        _soak(document.soak) if document.soak else "",
        _table(("arm", "case", "answers", "differ", "per 1,000 tokens"), rows),
    )


def _soak(soak: Soak) -> str:
    """Every fault that could have shown; found ones with what shows them and how to see them again."""
    rows = [
        (
            escaped(fault.arm, limit=_NAME_CHARACTERS),
            fault.name,
            f"{fault.count} of {fault.exposed}",
            f"{fault.low:.1%} to {fault.high:.1%}",
            f"{fault.control_count} of {fault.control_exposed}",
            fault.result.value,
        )
        for fault in soak.faults
    ]
    found = [
        f"- {escaped(fault.arm, limit=_NAME_CHARACTERS)}, {fault.name}: "
        + "; ".join(
            [
                *(escaped(said) for said in (*fault.places, *fault.evidence[:1])),
                *([f"to reproduce it: `python {escaped(fault.script)} URL`"] if fault.script else []),
            ]
        )
        for fault in soak.faults
        if fault.result is SoakResult.FOUND
    ]
    heads = ("arm", "fault", "seen", "95 % interval", "baseline", "result")
    streams = ", ".join(map(str, soak.concurrency))
    asked = f"Soak: {soak.requests:,} requests, {streams} at once, {soak.launches} launches."
    return "\n\n".join(filter(None, (asked, _table(heads, rows), "\n".join(found))))


def plan_markdown(plan: Plan) -> str:
    loads = plan.prediction.loads
    rates = [best.acceptance for best in loads[0].best] if loads else []
    rows = [
        (
            str(load.concurrency),
            *(f"{best.speedup.value:.2f}x " + (f"k={best.k}" if best.k else "off") for best in load.best),
        )
        for load in loads
    ]
    heads = ("requests at once", *(f"acceptance {escaped(rate, limit=_NAME_CHARACTERS)}" for rate in rates))
    return _page(plan.answer, _table(heads, rows), "Predicted, not measured.")


def escaped(text: str, *, limit: int = 400) -> str:
    """Text that reads as it is, in a paragraph and in a table."""
    shown = (
        printable(text.strip(), limit=limit).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    )
    shown = _LEADING.sub(r"\1\\\2", _MARKS.sub(r"\\\1", shown))
    # What turns into a link or a mention by itself.
    shown = shown.replace("://", "&#58;//").replace("www.", "www&#46;")
    return shown.replace("@", "@<!-- -->")


def _page(answer: ShortAnswer | None, *parts: str) -> str:
    return "\n\n".join(part for part in (*_answer(answer), *parts) if part) + "\n"


def _answer(answer: ShortAnswer | None) -> Iterator[str]:
    if answer is None:
        return
    yield f"**{escaped(answer.sentence)}**"
    yield "\n".join(f"- {escaped(reason)}" for reason in answer.because)
    following = answer.next
    if following is not None:
        when = command_time(following.command, following.seconds)
        yield _command(f"Next, {when}", following.command)


def _configuration(document: VerdictDocument) -> str:
    """The winner's server, where it is not what comes next anyway."""
    command = (document.configuration or {}).get("command")
    following = document.answer.next if document.answer is not None else None
    return "" if following is not None and following.command == command else _command("Server", command)


def _command(title: str, command: str | None) -> str:
    if not command:
        return ""
    shown = printable(command, limit=_COMMAND_CHARACTERS)
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{title}:\n\n{fence}sh\n{shown}\n{fence}"


def _bounds(shown: Bounds) -> tuple[str, str]:
    low, high = shown.low, shown.high
    known = "unknown" if low is None or high is None else f"{low:.2f} to {high:.2f}"
    return f"{shown.value:.2f}x", known


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
