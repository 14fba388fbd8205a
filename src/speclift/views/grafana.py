"""A Grafana dashboard (version 11) over the engine's own metrics and the rules of prometheus_rules.py. Pure."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from speclift.core.engine_facts import CounterNames
from speclift.core.quantities import printable
from speclift.core.results import Percentiles
from speclift.views.monitoring import (
    ACCEPTANCE_RATE,
    ACCEPTED_LENGTH,
    BREAK_EVEN,
    PAYS,
    TOKENS_PER_SECOND,
    UNDER_WAY,
    Monitoring,
    number_text,
    of_study,
)

DASHBOARD_FILE = "speclift-dashboard.json"
# Grafana 11.0's; later ones bring it up to date as they load it.
SCHEMA_VERSION = 39
# The grid is 24 wide.
WIDTH, HEIGHT = 12, 8
CHOSEN = 'instance=~"$instance"'
QUANTILES = ((0.5, "P50"), (0.95, "P95"), (0.99, "P99"))
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_DASHED = {
    "matcher": {"id": "byRegexp", "options": "/^baseline|^breaks even|^crossover/"},
    "properties": [
        {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [10, 10]}},
        {"id": "custom.lineWidth", "value": 1},
    ],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Query:
    expression: str
    legend: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panel:
    title: str
    queries: Sequence[_Query]
    unit: str = "short"
    description: str = ""
    kind: str = "timeseries"
    most: float | None = None


def dashboard_text(facts: Monitoring) -> str:
    panels = [_placed(panel, number) for number, panel in enumerate(_panels(facts))]
    document: dict[str, object] = {
        "uid": None,
        "title": f"Speculative decoding: {_inert(facts.model)}",
        "description": _inert(of_study(facts)),
        "tags": ["speclift", "speculative-decoding", facts.names.engine],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables(facts)},
        "annotations": {"list": []},
        "panels": panels,
    }
    return json.dumps(document, indent=2, ensure_ascii=True) + "\n"


def _inert(text: str) -> str:
    """Grafana fills in variables and shows descriptions as Markdown."""
    return html.escape(printable(text)).replace("$", "&#36;").replace("[", "&#91;").replace("`", "&#96;")


def _variables(facts: Monitoring) -> list[dict[str, object]]:
    series = f"{facts.names.tokens}{facts.matcher}"
    return [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        {
            "name": "instance",
            "label": "server",
            "type": "query",
            "datasource": _SOURCE,
            "query": {"query": f"label_values({series}, instance)", "refId": "servers"},
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        },
    ]


def _panels(facts: Monitoring) -> Iterator[_Panel]:
    names = facts.names
    yield _Panel(
        title="Does it pay?",
        kind="state-timeline",
        queries=[_Query(expression=f"{PAYS}{{{CHOSEN}}}", legend="{{instance}}")],
        description="Accepted length against what the study measured to break even at the load of the moment.",
    )
    yield _Panel(
        title="Accepted length",
        queries=[
            _Query(expression=f"{ACCEPTED_LENGTH}{{{CHOSEN}}}", legend="{{instance}}"),
            _Query(expression=f"{BREAK_EVEN}{{{CHOSEN}}}", legend="breaks even {{instance}}"),
        ],
        description="Tokens per step, steps without a draft included.",
    )
    yield _Panel(
        title="Acceptance rate",
        unit="percentunit",
        most=1.0,
        queries=[_Query(expression=f"{ACCEPTANCE_RATE}{{{CHOSEN}}}", legend="{{instance}}")],
        description="Of the drafted tokens, those that the model would have said too.",
    )
    yield _Panel(
        title="Acceptance by position",
        unit="percentunit",
        most=1.0,
        queries=[_Query(expression=_by_position(facts), legend="position {{position}}")],
        description="Of all drafts, those that were accepted as far as this position.",
    )
    yield from _time_panels(facts)
    yield _Panel(
        title="Tokens per second",
        queries=[_Query(expression=f"{TOKENS_PER_SECOND}{{{CHOSEN}}}", legend="{{instance}}")],
    )
    yield _load_panel(facts)
    yield from _cache_panels(names, facts)


def _chosen(facts: Monitoring) -> str:
    own = facts.matcher.strip("{}")
    return f"{{{own},{CHOSEN}}}" if own else f"{{{CHOSEN}}}"


def _by_position(facts: Monitoring) -> str:
    names, chosen, window = facts.names, _chosen(facts), facts.window
    hits = f"sum by (position) (increase({names.accepted_at}{chosen}[{window}]))"
    return f"{hits} / scalar(sum(increase({names.drafts}{chosen}[{window}])) > 0)"


def _time_panels(facts: Monitoring) -> Iterator[_Panel]:
    names, chosen, window = facts.names, _chosen(facts), facts.window
    for title, buckets, metric in (
        ("Time to first token", names.ttft, "ttft"),
        ("Time per output token", names.tpot, "tpot"),
    ):
        if buckets is not None:
            queries = [
                _Query(
                    expression=f"histogram_quantile({quantile:g}, sum by (le) (rate({buckets}{chosen}[{window}])))",
                    legend=label,
                )
                for quantile, label in QUANTILES
            ]
            yield _Panel(title=title, unit="s", queries=[*queries, *_baseline(facts, metric)])
    if names.tpot is None and names.decode_s is not None:
        spent = f"sum by (instance) (rate({names.decode_s}{chosen}[{window}]))"
        said = f"sum by (instance) (rate({names.tokens}{chosen}[{window}]))"
        yield _Panel(
            title="Time per output token",
            unit="s",
            queries=[
                _Query(expression=f"{spent} / ({said} > 0)", legend="mean {{instance}}"),
                *_baseline(facts, "tpot"),
            ],
        )


def _baseline(facts: Monitoring, metric: str) -> Iterator[_Query]:
    """Constant lines: what the server without speculation took in the study, load by load."""
    for point in facts.evens.loads:
        times = point.baseline_ttft_s if metric == "ttft" else point.baseline_tpot_s
        for value, label in _known(times):
            yield _Query(
                expression=f"vector({number_text(value)})",
                legend=f"baseline {label} at {point.load.label}",
            )


def _known(times: Percentiles | None) -> Iterator[tuple[float, str]]:
    if times is None:
        return
    for value, label in ((times.p50, "P50"), (times.p95, "P95")):
        if value is not None:
            yield value, label


def _load_panel(facts: Monitoring) -> _Panel:
    chosen, names = _chosen(facts), facts.names
    queries = [
        _Query(expression=f"sum by (instance) ({names.running}{chosen})", legend="running {{instance}}"),
        _Query(expression=f"sum by (instance) ({names.waiting}{chosen})", legend="waiting {{instance}}"),
        _Query(expression=f"{UNDER_WAY}{{{CHOSEN}}}", legend="mean under way {{instance}}"),
    ]
    crossover = facts.evens.crossover
    if crossover is not None:
        queries.append(
            _Query(expression=f"vector({number_text(crossover.value)})", legend="crossover in the study")
        )
    return _Panel(title="Requests", queries=queries)


def _cache_panels(names: CounterNames, facts: Monitoring) -> Iterator[_Panel]:
    chosen, window = _chosen(facts), facts.window
    if names.kv_used is not None:
        query = _Query(expression=f"max by (instance) ({names.kv_used}{chosen})", legend="{{instance}}")
        yield _Panel(title="KV cache in use", unit="percentunit", most=1.0, queries=[query])
    if names.prefix_hits is not None and names.prefix_queries is not None:
        hits = f"sum by (instance) (rate({names.prefix_hits}{chosen}[{window}]))"
        asked = f"sum by (instance) (rate({names.prefix_queries}{chosen}[{window}]))"
        query = _Query(expression=f"{hits} / ({asked} > 0)", legend="{{instance}}")
        yield _Panel(title="Prefix cache hits", unit="percentunit", most=1.0, queries=[query])


def _placed(panel: _Panel, number: int) -> dict[str, object]:
    column, row = number % (24 // WIDTH), number // (24 // WIDTH)
    defaults: dict[str, object] = {"unit": panel.unit, "min": 0}
    if panel.most is not None:
        defaults["max"] = panel.most
    if panel.kind == "state-timeline":
        defaults = {"mappings": [_states()], "color": {"mode": "thresholds"}, "thresholds": _STEPS}
    return {
        "id": number + 1,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {
            "defaults": defaults,
            "overrides": [_DASHED] if panel.kind == "timeseries" else [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}},
        "targets": [
            {
                "refId": chr(ord("A") + index) if index < 26 else f"Q{index}",
                "datasource": _SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
                "range": True,
                "editorMode": "code",
            }
            for index, query in enumerate(panel.queries)
        ],
    }


_STEPS = {
    "mode": "absolute",
    "steps": [{"color": "red", "value": None}, {"color": "green", "value": 1}],
}


def _states() -> dict[str, object]:
    return {
        "type": "value",
        "options": {
            "0": {"text": "does not pay", "color": "red", "index": 0},
            "1": {"text": "pays", "color": "green", "index": 1},
        },
    }
