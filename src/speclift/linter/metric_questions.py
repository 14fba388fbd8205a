"""Whatever in a text asks for metrics, sorted by the engine that exports them. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import unquote_plus

from speclift.core.errors import UsageError
from speclift.linter.dialect import Dialect, Dialects, base_name
from speclift.linter.metrics import MetricNames, Selection, selection
from speclift.linter.pasted import AskedMetrics, Form, MetricQuery, Pasted, looks_like_config, parse_json
from speclift.linter.shell import read_shell

# Prometheus rules, Grafana dashboards, autoscalers: every query in a file, wherever its key stands


# Keys whose text is PromQL, in rules, panels, variables, KEDA's triggers and the Prometheus adapter.
_QUERY_KEYS = ("expr", "query", "definition", "metricsQuery", "seriesQuery", "prometheus_query")
HAS_QUERY = re.compile(rf"""["']?\b(?:{"|".join(_QUERY_KEYS)})["']?\s*:""")
# Grafana's own functions around a query.
_VALUES_OF = re.compile(
    r"\s*(label_values|query_result|metrics|label_names)\s*\((.*)\)\s*", re.IGNORECASE | re.DOTALL
)
# Variables of a dashboard whose query is no PromQL.
_OTHER_VARIABLES = ("datasource", "custom", "interval", "constant", "textbox", "adhoc")
NAME_MAX = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """`asked_by` in words; `fails` what becomes of whoever asks where nothing answers; `record` the series that it
    makes itself, `fault` why there is no text to read."""

    text: str = ""
    asked_by: str = ""
    fails: str = "finds nothing"
    record: str = ""
    fault: str = ""


def file_queries(documents: list[object]) -> list[Query]:
    return [query for document in documents for query in _queries(document, asker=Query(), is_inner=False)]


def url_query(url: str) -> str | None:
    """The query of `…/api/v1/query?query=rate(…)`, or of `query=…` as curl takes it."""
    match = re.search(r"(?:^|[?&])query=([^&]*)", url)
    return None if match is None else unquote_plus(match[1]) if "%" in match[1] else match[1]


def _queries(value: object, *, asker: Query, is_inner: bool) -> Iterator[Query]:
    if isinstance(value, Mapping):
        if value.get("type") in _OTHER_VARIABLES and "name" in value:
            return
        asker = _asker(value) or asker
        for key, inner in value.items():
            if key in _QUERY_KEYS and isinstance(inner, str):
                yield replace(asker, text=inner)
            elif isinstance(inner, str) and not is_inner and _is_file(inner):
                yield from _inner_queries(str(key), inner)
            else:
                yield from _queries(inner, asker=asker, is_inner=is_inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _queries(inner, asker=asker, is_inner=is_inner)


def _asker(value: Mapping[str, object]) -> Query | None:
    """The queries in this map by who asks, still without a text; None where it is whoever stood around it."""
    if isinstance(value.get("alert"), str):
        return Query(asked_by=f"alert {_name(value['alert'])}", fails="can never fire")
    if isinstance(value.get("record"), str):
        return Query(
            asked_by=f"rule {_name(value['record'])}", fails="records nothing", record=str(value["record"])
        )
    if "targets" in value and isinstance(value.get("title"), str):
        return Query(asked_by=f"panel {_name(value['title']) or 'without a title'}", fails="stays empty")
    if "query" in value and isinstance(value.get("name"), str):
        return Query(asked_by=f"variable {_name(value['name'])}", fails="has no values")
    if isinstance(value.get("triggers"), list):
        return Query(asked_by="the trigger", fails="never scales")
    return None


def _name(value: object) -> str:
    return str(value)[:NAME_MAX]


def _is_file(text: str) -> bool:
    return text.lstrip()[:1] in ("{", "[") or "groups:" in text


def _inner_queries(name: str, text: str) -> Iterator[Query]:
    """A file that another one carries as text."""
    from speclift.linter.config_file import read_yaml  # late: a command needs no PyYAML

    if not HAS_QUERY.search(text):
        return
    try:
        documents = [parse_json(text)] if text.lstrip()[:1] in ("{", "[") else _values(read_yaml(text))
    except (ValueError, UsageError) as error:
        yield Query(
            text="", asked_by=_name(name), fault=f"this file in the file cannot be read: {error}"[:300]
        )
        return
    for document in documents:
        yield from _queries(document, asker=Query(), is_inner=True)


def _values(documents: list[tuple[int, object]]) -> list[object]:
    return [document for _, document in documents]


def plain_query(text: str) -> str:
    """Without Grafana's own function around it: label_values(metric, label) asks for the metric."""
    match = _VALUES_OF.fullmatch(text)
    if match is None:
        return text
    function, inner = match[1].lower(), match[2]
    if function == "query_result":
        return inner
    if function == "metrics":
        return "{__name__=~" + f'"{inner}"' + "}"
    series, _, _ = inner.rpartition(",")
    return series


# Shell commands: curl … | grep, promtool query, a query in an address


PATTERNS_MAX = 200  # each is compared with every metric there is
_DEEPEST = 3  # watch "ssh host 'curl …'"
_GREPS = ("grep", "egrep", "fgrep", "zgrep", "rg")
_WITH_VALUE = ("-A", "-B", "-C", "-m", "--context", "--max-count", "--color", "-d", "-D")


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedByLines:
    """`patterns` are what grep looks for in a page of metrics; `documents` are files that the script writes."""

    queries: tuple[Query, ...] = ()
    patterns: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()


def asked_by_lines(text: str, *, depth: int = 0) -> AskedByLines:
    """Nothing where this is no shell source."""
    try:
        shell = read_shell(text)
    except UsageError:
        return AskedByLines()
    reads_page = "/metrics" in text
    queries: list[Query] = []
    patterns: list[str] = []
    for command in shell.commands:
        program = base_name(command.words[0])
        rest = command.words[1:]
        if program in _GREPS and reads_page:
            patterns += _grepped(rest)
        elif program == "promtool" and rest[:1] == ("query",):
            queries += [
                Query(text=word, asked_by="promtool") for word in rest[3:] if not word.startswith("-")
            ][:1]
        else:
            asked = [url_query(word) for word in rest if "query=" in word]
            queries += [Query(text=query, asked_by=program) for query in asked if query]
            inner = _inside(rest, depth=depth)
            queries += inner.queries
            patterns += inner.patterns
    patterns = list(dict.fromkeys(patterns))
    if len(patterns) > PATTERNS_MAX:
        queries.append(Query(text="", asked_by="grep", fault=f"only {PATTERNS_MAX} patterns were judged"))
    return AskedByLines(
        queries=tuple(queries), patterns=tuple(patterns[:PATTERNS_MAX]), documents=tuple(shell.documents)
    )


def _inside(words: Sequence[str], *, depth: int) -> AskedByLines:
    """Reads the commands that watch, bash -c or ssh are given to run."""
    if depth >= _DEEPEST:
        return AskedByLines()
    told = [
        asked_by_lines(word, depth=depth + 1)
        for word in words
        if "/metrics" in word and any(character.isspace() for character in word)
    ]
    return AskedByLines(
        queries=tuple(query for each in told for query in each.queries),
        patterns=tuple(pattern for each in told for pattern in each.patterns),
    )


def _grepped(words: Sequence[str]) -> list[str]:
    """The patterns that lines have to match; those of -v leave lines out."""
    patterns: list[str] = []
    plain: list[str] = []
    rest = iter(words)
    for word in rest:
        is_short = word.startswith("-") and not word.startswith("--")
        if word == "--invert-match" or (is_short and "v" in word):
            return []
        if word in ("-e", "--regexp"):
            patterns += [pattern for pattern in (next(rest, ""),) if pattern]
        elif word in _WITH_VALUE:
            next(rest, "")
        elif not word.startswith("-"):
            plain.append(word)
    return patterns or plain[:1]


# Both, by engine


OTHERS_MAX = 8  # named in the note
SHOWN_MAX = 80
WORDS_MAX = 3  # that no engine exports, in an expression; with more it is prose


def questions_in(text: str, dialects: Dialects) -> tuple[tuple[Pasted, ...], bool]:
    """One `Pasted` for each engine that is asked for metrics, and whether the text is a file of queries. UsageError
    where it is one that cannot be read."""
    told = [(dialect, dialect.metrics) for dialect in dialects.in_question if dialect.metrics is not None]
    asked = _by_engine(_file_queries(text, told), (), told, "")
    if asked:
        return asked, True
    lines = asked_by_lines(text)
    written = [query for document in lines.documents for query in _file_queries(document, told)]
    asked = _by_engine([*lines.queries, *written], lines.patterns, told, text)
    if not (lines.queries or lines.patterns or written) and asked and _is_expression(text, told):
        asked = _by_engine([Query(text=text)], (), told, "")
    return asked, False


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
