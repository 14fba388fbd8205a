"""Whatever in a text asks for metrics, sorted by the engine that exports them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from speclift.core.errors import UsageError
from speclift.linter.dialect import Dialect, Dialects
from speclift.linter.json_text import looks_like_config
from speclift.linter.metric_files import HAS_QUERY, Query, file_queries, plain_query
from speclift.linter.metric_lines import asked_by_lines
from speclift.linter.metrics import MetricNames
from speclift.linter.pasted import AskedMetrics, Form, MetricQuery, Pasted
from speclift.linter.promql import Selection, selection

OTHERS_MAX = 8  # named in the note
SHOWN_MAX = 80
WORDS_MAX = 3  # that no engine exports, in an expression; with more it is prose


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """One `Pasted` for each engine that is asked for metrics. `is_file`: the text is a file of queries."""

    asked: tuple[Pasted, ...] = ()
    is_file: bool = False


def questions_in(text: str, dialects: Dialects) -> Questions:
    """UsageError where a text is a file of queries and cannot be read as one."""
    told = [(dialect, dialect.metrics) for dialect in dialects.in_question if dialect.metrics is not None]
    asked = _by_engine(_file_queries(text, told), (), told, "")
    if asked:
        return Questions(asked=asked, is_file=True)
    lines = asked_by_lines(text)
    written = [query for document in lines.documents for query in _file_queries(document, told)]
    asked = _by_engine([*lines.queries, *written], lines.patterns, told, text)
    if not (lines.queries or lines.patterns or written) and asked and _is_expression(text, told):
        asked = _by_engine([Query(text=text)], (), told, "")
    return Questions(asked=asked)


def _file_queries(text: str, told: Sequence[tuple[Dialect, MetricNames]]) -> Sequence[Query]:
    """UsageError where it looks like such a file, and is none; empty where it looks like something else."""
    if not HAS_QUERY.search(text) or not any(metrics.prefix in text for _, metrics in told):
        return ()
    from speclift.linter.config_file import read_yaml  # late: a command needs no PyYAML

    try:
        return file_queries([document for _, document in read_yaml(text)])
    except UsageError:
        if looks_like_config(text):
            raise
        return ()


def _is_expression(text: str, told: Sequence[tuple[Dialect, MetricNames]]) -> bool:
    selected = selection(text)
    others = _foreign_names([selected], told, ())
    return any(sign in text for sign in "([{") and not selected.fault and len(others) <= WORDS_MAX


def _by_engine(
    queries: Sequence[Query],
    patterns: Sequence[str],
    told: Sequence[tuple[Dialect, MetricNames]],
    text: str,
) -> tuple[Pasted, ...]:
    """`text` is searched for names as well, outside what was read as a query or a pattern."""
    recorded = {query.record for query in queries if query.record}
    read = [(query, selection(plain_query(query.text))) for query in queries]
    sources = [*(query.text for query in queries), *patterns]
    found = []
    for dialect, metrics in told:
        named = metrics.found_in(text)
        asked = AskedMetrics(
            queries=tuple(_own_query(query, selected, metrics, recorded) for query, selected in read),
            patterns=tuple(pattern for pattern in patterns if dialect.engine in _engines_of(pattern, told)),
            named=tuple(name for name in named if not any(name in source for source in sources)),
        )
        if asked:
            found.append(Pasted(engine=dialect.engine, form=Form.COMMAND, settings=(), metrics=asked))
    if not found:
        return ()
    others = _foreign_names([selected for _, selected in read], told, recorded)
    first = replace(found[0], notes=_others_note(others), unread=tuple(_unread(read)))
    return (first, *found[1:])


def _foreign_names(
    selections: Sequence[Selection], told: Sequence[tuple[Dialect, MetricNames]], recorded: Collection[str]
) -> list[str]:
    names = dict.fromkeys(name for selected in selections for name in selected.names if name not in recorded)
    return [name for name in names if not any(metrics.is_own(name) for _, metrics in told)]


def _engines_of(pattern: str, told: Sequence[tuple[Dialect, MetricNames]]) -> list[str]:
    """Engines may export the same names: a pattern without a prefix is about those that it finds something of."""
    finding = [dialect.engine for dialect, metrics in told if metrics.finds(pattern, dialect.newest)]
    return finding or [dialect.engine for dialect, metrics in told if metrics.may_match(pattern)]


def _own_query(
    query: Query, selected: Selection, metrics: MetricNames, recorded: Collection[str]
) -> MetricQuery:
    return MetricQuery(
        asked_by=query.asked_by,
        fails=query.fails,
        names=tuple(name for name in selected.names if name not in recorded and metrics.is_own(name)),
        patterns=tuple(each for each in selected.patterns if metrics.may_match(each, is_whole=True)),
        has_or=selected.has_or,
    )


def _unread(read: Sequence[tuple[Query, Selection]]) -> Iterator[tuple[str, str]]:
    for query, selected in read:
        if query.fault or selected.fault:
            why = query.fault or f"this query cannot be read: {selected.fault}"
            yield query.asked_by or query.text[:SHOWN_MAX], why


def _others_note(others: Sequence[str]) -> tuple[str, ...]:
    if not others:
        return ()
    more = f" and {len(others) - OTHERS_MAX:,} more" if len(others) > OTHERS_MAX else ""
    listed = ", ".join(name[:SHOWN_MAX] for name in others[:OTHERS_MAX])
    return (f"not judged, because no engine known here exports them: {listed}{more}",)
