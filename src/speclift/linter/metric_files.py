"""Prometheus rules, Grafana dashboards, autoscalers: every query in a file, with who asks it. Pure.

A rule file stands alone, in a PrometheusRule, or in the ConfigMap that an operator mounts; a dashboard alone, as
Grafana's API wraps it, or as JSON in a ConfigMap. So queries are looked for by their keys, wherever they stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import unquote_plus

from speclift.core.errors import UsageError
from speclift.linter.json_text import parse_json

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

    text: str
    asked_by: str = ""
    fails: str = "finds nothing"
    record: str = ""
    fault: str = ""


def file_queries(documents: list[object]) -> list[Query]:
    return [query for document in documents for query in _queries(document, asker=None, is_inner=False)]


def url_query(url: str) -> str | None:
    """Of `…/api/v1/query?query=rate(…)`, or of `query=…` as curl takes it."""
    match = re.search(r"(?:^|[?&])query=([^&]*)", url)
    return None if match is None else unquote_plus(match[1]) if "%" in match[1] else match[1]


@dataclass(frozen=True, slots=True)
class _Asker:
    words: str
    fails: str
    record: str = ""


def _queries(value: object, *, asker: _Asker | None, is_inner: bool) -> Iterator[Query]:
    if isinstance(value, Mapping):
        if value.get("type") in _OTHER_VARIABLES and "name" in value:
            return
        asker = _asker(value) or asker
        for key, inner in value.items():
            if key in _QUERY_KEYS and isinstance(inner, str):
                yield _query(inner, asker)
            elif isinstance(inner, str) and not is_inner and _is_file(inner):
                yield from _inner_queries(str(key), inner)
            else:
                yield from _queries(inner, asker=asker, is_inner=is_inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _queries(inner, asker=asker, is_inner=is_inner)


def _query(text: str, asker: _Asker | None) -> Query:
    if asker is None:
        return Query(text=text)
    return Query(text=text, asked_by=asker.words, fails=asker.fails, record=asker.record)


def _asker(value: Mapping[str, object]) -> _Asker | None:
    """Who stands behind the queries in this map; None where it is whoever stood around it."""
    if isinstance(value.get("alert"), str):
        return _Asker(f"alert {_name(value['alert'])}", "can never fire")
    if isinstance(value.get("record"), str):
        return _Asker(f"rule {_name(value['record'])}", "records nothing", str(value["record"]))
    if "targets" in value and isinstance(value.get("title"), str):
        return _Asker(f"panel {_name(value['title']) or 'without a title'}", "stays empty")
    if "query" in value and isinstance(value.get("name"), str):
        return _Asker(f"variable {_name(value['name'])}", "has no values")
    if isinstance(value.get("triggers"), list):
        return _Asker("the trigger", "never scales")
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
        yield from _queries(document, asker=None, is_inner=True)


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
