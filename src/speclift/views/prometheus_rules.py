"""Recording and alert rules from what a study measured, and tests of those rules for promtool. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from speclift.core.judged import knots_of
from speclift.core.quantities import printable
from speclift.core.units import Seconds
from speclift.views.monitoring import (
    ACCEPTANCE_RATE,
    ACCEPTED_LENGTH,
    BREAK_EVEN,
    PAYS,
    STEPS,
    TOKENS,
    TOKENS_PER_SECOND,
    UNDER_WAY,
    Monitoring,
    break_even_query,
    number_text,
    of_study,
    prometheus_duration,
    promql_text,
    tokens_query,
)
from speclift.views.yaml_files import yaml_file

RULES_FILE, TESTS_FILE = "speclift-rules.yml", "speclift-rules-test.yml"
DOES_NOT_PAY = "SpeculationDoesNotPay"
COLLAPSED = "SpeculationAcceptanceCollapsed"
BEYOND = "SpeculationBeyondCrossover"
NO_DRAFTS = "SpeculationDraftsNothing"
UNWATCHED = "SpeculationNotWatched"
# Prometheus fills these in.
LENGTH_SHOWN, RUNNING_SHOWN = '{{ printf "%.2f" $value }}', '{{ printf "%.1f" $value }}'
_BRACES = '{{"{{"}}'


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alert:
    name: str
    expression: str
    severity: str
    summary: str
    description: str


def rules_text(facts: Monitoring) -> str:
    groups = [
        {"name": "speclift-recording", "rules": list(_recordings(facts))},
        {"name": "speclift-alerts", "rules": [_alert_rule(alert, facts) for alert in _alerts(facts)]},
    ]
    return yaml_file({"groups": groups}, head=_head(facts))


def _head(facts: Monitoring) -> list[str]:
    loads = "; ".join(
        f"{point.load.label} ({point.running:.3g} under way): {point.accepted_length:.2f}"
        for point in facts.evens.loads
    )
    crossover = facts.evens.crossover
    return [
        f"Written by speclift from {of_study(facts)}.",
        f"Accepted length that breaks even, as measured: {loads}.",
        "Crossover: "
        + ("none measured." if crossover is None else f"{crossover.value:.3g} requests under way."),
        f"Check with: promtool check rules {RULES_FILE}; promtool test rules {TESTS_FILE}",
    ]


def _recordings(facts: Monitoring) -> Iterator[dict[str, str]]:
    names = facts.names
    queries = {
        UNDER_WAY: f"{facts.average(names.running)} + {facts.average(names.waiting)}",
        TOKENS: tokens_query(facts),
        STEPS: f"{TOKENS} - {facts.increase(names.accepted)}",
        ACCEPTED_LENGTH: f"{TOKENS} / ({STEPS} > 0)",
        ACCEPTANCE_RATE: f"{facts.increase(names.accepted)} / ({facts.increase(names.drafted)} > 0)",
        BREAK_EVEN: break_even_query(facts),
        PAYS: f"{ACCEPTED_LENGTH} >= bool {BREAK_EVEN}",
        TOKENS_PER_SECOND: f"{facts.increase(names.tokens)} / {number_text(facts.window_s)}",
    }
    for name, query in queries.items():
        yield {"record": name, "expr": query}


def _alerts(facts: Monitoring) -> Iterator[_Alert]:
    enough = f"and {TOKENS} > {number_text(facts.tokens_min)}"
    length = f"an accepted length of {LENGTH_SHOWN}"
    yield _Alert(
        name=DOES_NOT_PAY,
        expression=f"({ACCEPTED_LENGTH} < {BREAK_EVEN}) {enough}",
        severity="warning",
        summary="speculation makes this server slower at its present load",
        description=f"{length} is below what breaks even at the load of the moment",
    )
    lowest = min(point.accepted_length for point in facts.evens.loads)
    if lowest > 1:
        yield _Alert(
            name=COLLAPSED,
            expression=f"({ACCEPTED_LENGTH} < {number_text(lowest)}) {enough}",
            severity="critical",
            summary="so few drafts are accepted that speculation pays at no load that was measured",
            description=f"{length} is below {lowest:.2f}, the lowest that broke even at any load",
        )
    crossover = facts.evens.crossover
    if crossover is not None:
        yield _Alert(
            name=BEYOND,
            expression=f"{UNDER_WAY} > {number_text(crossover.value)}",
            severity="warning",
            summary="the load is above the one at which speculation stopped paying in the study",
            description=f"{RUNNING_SHOWN} requests under way; "
            f"the crossover was measured at {crossover.value:.3g} ({crossover.metric})",
        )
    drafted_before = facts.increase_over(facts.names.drafted, facts.memory_s)
    yield _Alert(
        name=NO_DRAFTS,
        expression=f"({TOKENS} > {number_text(facts.tokens_min)}) unless ({facts.increase(facts.names.drafted)} > 0) "
        f"and ({drafted_before} > 0)",
        severity="warning",
        summary="a server that drafted before answers without any draft",
        description="was it restarted without its speculative configuration?",
    )
    yield _Alert(
        name=UNWATCHED,
        expression=f"absent({facts.names.tokens}{facts.matcher})",
        severity="info",
        summary="no server of this model is scraped, so none of these rules can say anything",
        description="is the model served under another name, or metrics switched off?",
    )


def _alert_rule(alert: _Alert, facts: Monitoring) -> dict[str, object]:
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": prometheus_duration(facts.hold_s),
        "labels": _labels(alert, facts),
        "annotations": _annotations(alert, facts),
    }


def _labels(alert: _Alert, facts: Monitoring) -> dict[str, str]:
    return {"severity": alert.severity, "arm": _inert(facts.evens.arm.name)}


def _annotations(alert: _Alert, facts: Monitoring) -> dict[str, str]:
    return {
        "summary": alert.summary,
        "description": alert.description,
        "study": _inert(of_study(facts)),
    }


def _inert(text: str) -> str:
    """Prometheus reads labels and annotations as templates."""
    return printable(text).replace("{{", _BRACES)


# Tests of the rules: each a story told in counters, scrape by scrape


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    """What a server does between two scrapes, for so many of them."""

    scrapes: int
    accepted_length: float = 1.0
    running: float = 0.0
    steps: float = 0.0
    drafts: bool = True


# Of a window: one minute between two where it is the usual ten.
SCRAPES = 10
# Begun between two scrapes, and tokens in a window as a multiple of what is needed to say something.
_ANSWERS, _PLENTY = 100.0, 100.0


def _scrape_s(facts: Monitoring) -> Seconds:
    return facts.window_s / SCRAPES


def tests_text(facts: Monitoring) -> str:
    """They fire on the drop and only then; a rule that never fires, or always, fails them."""
    return yaml_file(
        {
            "rule_files": [RULES_FILE],
            "evaluation_interval": prometheus_duration(_scrape_s(facts)),
            "tests": list(_stories(facts)),
        },
        head=[f"Tests of {RULES_FILE}: promtool test rules {TESTS_FILE}"],
    )


def _stories(facts: Monitoring) -> Iterator[dict[str, object]]:
    known = {alert.name: alert for alert in _alerts(facts)}
    span = 1 + math.ceil((facts.window_s + facts.hold_s) / _scrape_s(facts))
    good = _paying(facts, scrapes=2 * span)
    yield _story(facts, "it pays: nothing fires", [good], _none(facts, list(known), 2 * span))
    yield from _drops(facts, known, good)
    crossover = facts.evens.crossover
    if crossover is not None:
        busy = replace(good, running=math.ceil(crossover.value) + 1.0)
        checks = [
            *_none(facts, [BEYOND], 2 * span),
            _fires(facts, known[BEYOND], 4 * span, value=busy.running),
        ]
        yield _story(facts, "the load passes the crossover", [good, busy], checks)
    undrafted = replace(good, accepted_length=1.0, drafts=False)
    checks = [*_none(facts, [NO_DRAFTS], 2 * span), _fires(facts, known[NO_DRAFTS], 4 * span)]
    yield _story(facts, "drafts end while tokens flow", [good, undrafted], checks)
    idle = _Stretch(scrapes=4 * span)
    yield _story(facts, "no traffic: nothing fires", [idle], _none(facts, list(known), 4 * span))
    yield _story(facts, "nothing is scraped", [], [_fires(facts, known[UNWATCHED], 4 * span)])


def _paying(facts: Monitoring, *, scrapes: int) -> _Stretch:
    """Half as much again as what breaks even anywhere, at a load at which it paid."""
    knots, crossover = knots_of(facts.evens.loads), facts.evens.crossover
    lightest = knots[0][0]
    return _Stretch(
        scrapes=scrapes,
        accepted_length=1.5 * max(1.0, *(value for _, value in knots)),
        running=lightest if crossover is None else min(lightest, crossover.value / 2),
        steps=_PLENTY * max(1.0, facts.tokens_min / SCRAPES),
    )


def _drops(facts: Monitoring, known: Mapping[str, _Alert], good: _Stretch) -> Iterator[dict[str, object]]:
    """None where every step breaks even that says a token: then nothing can make speculation slower."""
    knots = knots_of(facts.evens.loads)
    lowest = min(value for _, value in knots)
    running, highest = max(knots, key=lambda knot: knot[1])
    if highest <= 1:
        return
    if lowest > 1:
        bad = replace(good, accepted_length=(1 + lowest) / 2)
        firing = [DOES_NOT_PAY, COLLAPSED]
        silent = [name for name in known if name not in firing]
    else:
        bad = replace(good, accepted_length=(1 + highest) / 2, running=running)
        firing, silent = [DOES_NOT_PAY], []
    yield _story(
        facts,
        "acceptance falls: it fires on the drop and only then",
        [good, bad],
        [
            *_none(facts, list(known), good.scrapes),
            *(_fires(facts, known[name], 2 * good.scrapes, value=bad.accepted_length) for name in firing),
            *_none(facts, silent, 2 * good.scrapes),
        ],
    )


def _none(facts: Monitoring, names: Sequence[str], scrape: int) -> list[dict[str, object]]:
    return [{"eval_time": _at(facts, scrape), "alertname": name, "exp_alerts": []} for name in names]


def _at(facts: Monitoring, scrape: int) -> str:
    return prometheus_duration(scrape * _scrape_s(facts))


def _fires(facts: Monitoring, alert: _Alert, scrape: int, *, value: float = 0.0) -> dict[str, object]:
    own = {"job": "llm", "instance": "server:8000"}
    if alert.name == UNWATCHED:
        own = {"model_name": facts.model} if facts.matcher else {}
    return {
        "eval_time": _at(facts, scrape),
        "alertname": alert.name,
        "exp_alerts": [
            {
                "exp_labels": {**own, **_filled_in(_labels(alert, facts), value)},
                "exp_annotations": _filled_in(_annotations(alert, facts), value),
            }
        ],
    }


def _filled_in(templates: Mapping[str, str], value: float) -> dict[str, str]:
    """As Prometheus shows them."""
    said = {LENGTH_SHOWN: f"{value:.2f}", RUNNING_SHOWN: f"{value:.1f}", _BRACES: "{{"}
    found = dict(templates)
    for template, shown in said.items():
        found = {name: text.replace(template, shown) for name, text in found.items()}
    return found


def _story(
    facts: Monitoring, name: str, parts: Sequence[_Stretch], checks: Sequence[dict[str, object]]
) -> dict[str, object]:
    return {
        "name": name,
        "interval": prometheus_duration(_scrape_s(facts)),
        "input_series": [{"series": series, "values": values} for series, values in _series(facts, parts)]
        if parts
        else [],
        "alert_rule_test": list(checks),
    }


def _series(facts: Monitoring, parts: Sequence[_Stretch]) -> Iterator[tuple[str, str]]:
    names = facts.names
    own = f',model_name="{promql_text(facts.model)}"' if facts.matcher else ""

    def labelled(name: str) -> str:
        return f'{name}{{job="llm",instance="server:8000"{own}}}'

    accepted = [part.steps * (part.accepted_length - 1) for part in parts]
    answers = [_ANSWERS if part.steps and names.requests else 0.0 for part in parts]
    drafted = [part.steps * facts.evens.arm.k * part.drafts for part in parts]
    counters = {
        names.tokens: [
            part.steps + extra + begun for part, extra, begun in zip(parts, accepted, answers, strict=True)
        ],
        names.accepted: accepted,
        names.drafted: drafted,
    }
    if names.requests is not None:
        counters[names.requests] = answers
    for name, rates in counters.items():
        yield labelled(name), _counter_values(parts, rates)
    yield labelled(names.running), " ".join(f"{part.running:.9g}+0x{part.scrapes - 1}" for part in parts)
    yield labelled(names.waiting), " ".join(f"0+0x{part.scrapes - 1}" for part in parts)


def _counter_values(parts: Sequence[_Stretch], rates: Sequence[float]) -> str:
    """In promtool's words: from here, so much more each time, so often."""
    at, words = 0.0, []
    for part, rate in zip(parts, rates, strict=True):
        words.append(f"{at:.12g}+{rate:.12g}x{part.scrapes - 1}")
        at += rate * part.scrapes
    return " ".join(words)
