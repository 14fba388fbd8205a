"""A replay for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from speclift.core.quantities import number, printable, share
from speclift.replayer.result import AcceptedLength, ReplayedSegment, ReplayResult
from speclift.views.terminal import findings_view

ALL = "all"
# What fits beside a name and a share in 80 columns: "1.35±0.10" five times, four times after a long name.
NAME_SHORT_MAX = 18
K_COLUMNS_MAX = 5
K_PREFERRED = (1, 3, 5, 8, 16, 2, 4, 12, 6, 10)
SEGMENT_ROWS_MAX = 20
SEGMENT_NAME_MAX = 16
# Beyond the smallest k within 2 % of the best there is little left to win.
NEAR_BEST = 0.98
# A drafter whose steps yield less than this has found nothing to copy.
WORTH_MEASURING = 1.05


def replay_view(document: ReplayResult) -> RenderableType:
    segments = document.segments
    overall = [each for each in segments if each.segment == ALL]
    ks = _shown_ks(overall)
    parts: list[RenderableType] = [Text(_headline(document)), _overall_table(overall, ks)]
    best = _best(overall)
    if best is not None:
        same = [each for each in segments if _drafter(each) == _drafter(best)]
        if len(same) > 2:  # 'all' and more than one segment
            parts.append(_segments_table(same, ks, title=f"By segment, {_name(best)}"))
        if best.predicted_speedup:
            parts.append(_speedup_table(same, ks, title=f"Predicted speedup per token, {_name(best)}"))
    parts.append(findings_view(document.findings))
    parts.append(Text(_conclusion(best), style="bold"))
    return Group(*parts)


def _headline(document: ReplayResult) -> str:
    log = document.log
    counts = f"replayed {document.requests:,} of {log.requests:,} requests, {log.tokens:,} tokens"
    tokenizer = document.tokenizer
    return (
        f"{counts}, tokenizer {printable(tokenizer, limit=60)}"
        if tokenizer
        else f"{counts}, token ids as logged"
    )


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )


def _overall_table(overall: Sequence[ReplayedSegment], ks: Sequence[int]) -> Table:
    table = _table("Accepted length: tokens per decode step, 95 % interval over requests")
    table.add_column("drafter", no_wrap=True)
    for name in ("n", "drafts", *(f"k={k}" for k in ks)):
        table.add_column(name, justify="right", no_wrap=True)
    for each in overall:
        table.add_row(
            Text(f"{each.engine} {each.method}"),
            _ngram(each),
            share(each.draft_share),
            *_lengths(each.accepted_length, ks),
        )
    return table


def _segments_table(segments: Sequence[ReplayedSegment], ks: Sequence[int], *, title: str) -> Table:
    table = _table(title)
    table.add_column("segment", no_wrap=True)
    for name in ("requests", "drafts", *(f"k={k}" for k in ks)):
        table.add_column(name, justify="right", no_wrap=True)
    for each in segments[: SEGMENT_ROWS_MAX + 1]:
        table.add_row(
            _segment_name(each),
            f"{each.requests:,}",
            share(each.draft_share),
            *_lengths(each.accepted_length, ks),
        )
    if len(segments) > SEGMENT_ROWS_MAX + 1:
        table.add_row(Text(f"and {len(segments) - SEGMENT_ROWS_MAX - 1} more in --json", style="dim"))
    return table


def _speedup_table(segments: Sequence[ReplayedSegment], ks: Sequence[int], *, title: str) -> Table:
    table = _table(title)
    for name in ("segment", "load", "cost"):
        table.add_column(name, no_wrap=True)
    for k in ks:
        table.add_column(f"k={k}", justify="right", no_wrap=True)
    for each in segments[: SEGMENT_ROWS_MAX + 1]:
        for predicted in each.predicted_speedup:
            load = "–" if predicted.load is None else predicted.load.label
            values = dict(zip(predicted.k, predicted.value, strict=True))
            table.add_row(
                _segment_name(each),
                load,
                f"{predicted.cost_per_drafted_token:.3f}",
                *(f"{values[k]:.2f}x" if k in values else "–" for k in ks),
            )
    return table


def _lengths(length: AcceptedLength, ks: Sequence[int]) -> list[str]:
    rows = zip(length.k, length.value, length.low, length.high, strict=True)
    shown = {}
    for k, value, low, high in rows:
        half = None if low is None or high is None else max(value - low, high - value)
        shown[k] = number(value) if half is None else f"{value:.2f}±{half:.2f}"
    return [shown.get(k, "–") for k in ks]


def _shown_ks(overall: Sequence[ReplayedSegment]) -> list[int]:
    present = sorted({k for each in overall for k in each.accepted_length.k})
    is_long = any(len(f"{each.engine} {each.method}") > NAME_SHORT_MAX for each in overall)
    columns = K_COLUMNS_MAX - is_long
    if len(present) <= columns:
        return present
    chosen = [present[-1], *(k for k in K_PREFERRED if k in present and k != present[-1])]
    chosen += [k for k in present if k not in chosen]
    return sorted(chosen[:columns])


def _best(overall: Sequence[ReplayedSegment]) -> ReplayedSegment | None:
    """The drafter with the longest steps at any k; the first of equals."""
    known = [each for each in overall if each.accepted_length.value]
    return max(known, key=lambda each: max(each.accepted_length.value), default=None)


def _conclusion(best: ReplayedSegment | None) -> str:
    if best is None:
        return "no answer has a decode step: no k can be estimated"
    length = best.accepted_length
    top = max(length.value)
    if top < WORTH_MEASURING:
        return (
            f"n-gram speculation would not pay here: the best drafter, {_name(best)}, reaches only {top:.2f} tokens "
            "per step."
        )
    method = best.method
    if best.ngram is not None:
        method += f",n={best.ngram}"
    if best.ngram_min != best.ngram:
        method += f",n_min={best.ngram_min}"
    k, words = _chosen_k(best, top)
    command = f"speclift decide --engine {best.engine} --method {method} --k {k} --prompts LOG"
    return f"{_name(best)}: {words}:\n{command}"


def _chosen_k(best: ReplayedSegment, top: float) -> tuple[int, str]:
    """The fastest k where a cost is known, at the first load; else the smallest with nearly the longest steps."""
    if best.predicted_speedup:
        predicted = best.predicted_speedup[0]
        value, k = max(zip(predicted.value, predicted.k, strict=True), key=lambda pair: pair[0])
        return k, f"{value:.2f}x predicted at k={k}. Measure it"
    length = best.accepted_length
    pairs = zip(length.k, length.value, strict=True)
    k, value = next((k, value) for k, value in pairs if value >= NEAR_BEST * top)
    words = f"{value:.2f} tokens per step at k={k}, within 2 % of the best k"
    return k, f"{words}. Measure whether it is faster"


def _drafter(each: ReplayedSegment) -> tuple[str, str, int | None, int | None]:
    return each.engine, each.method, each.ngram, each.ngram_min


def _name(each: ReplayedSegment) -> str:
    return f"{each.engine} {each.method}" + (f" n={_ngram(each)}" if each.ngram is not None else "")


def _ngram(each: ReplayedSegment) -> str:
    if each.ngram is None:
        return "1-4"
    return str(each.ngram) if each.ngram_min == each.ngram else f"{each.ngram_min}-{each.ngram}"


def _segment_name(each: ReplayedSegment) -> Text:
    return Text(printable(each.segment, limit=SEGMENT_NAME_MAX))
