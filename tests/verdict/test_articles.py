"""The articles' rules of thumb, each held against studies in which it holds, does not hold, and cannot be tested."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from answers import STATES, judged, part
from samples import provenance
from simulated import ARM, OTHER, cell, comparison, estimate, evidence
from speclift.core.arm import BASELINE, Arm
from speclift.core.results import Acceptance, Evidence, Part, Percentiles, TailRatio
from speclift.core.speculation import DraftModel, NGram
from speclift.core.traffic import Concurrency
from speclift.verdict.articles import ARTICLE_RULES, ArticleOutcome, check_articles
from speclift.verdict.document import verdict_document
from speclift.verdict.judgement import Judgement

HOLDS, FAILS, UNTESTED = ArticleOutcome.HOLDS, ArticleOutcome.DOES_NOT_HOLD, ArticleOutcome.NOT_TESTED
DRAFT = Arm(name="draft", speculation=DraftModel(model="d.gguf", k=4))
FASTER, SLOWER, EITHER = (1.2, 1.4, 1.6), (0.5, 0.6, 0.7), (0.9, 1.05, 1.2)


def sighting(judgement: Judgement, name: str) -> tuple[ArticleOutcome, str]:
    (check,) = [check for check in check_articles(judgement) if check.rule == name]
    return check.outcome, check.seen


def acceptance(mean: float, p10: float | None = None) -> Acceptance:
    return Acceptance(p10=p10, p50=mean, p90=mean, mean=mean, requests=100)


def accepting(
    rate: float, bounds: tuple[float, float, float], *, arm: Arm = ARM, **changes: Any
) -> Judgement:
    """One arm on one segment."""
    own = cell(arm=arm.name, acceptance_rate=acceptance(rate, changes.pop("p10", None)))
    whole = evidence(arm=arm, overall=comparison(*bounds, arm=arm.name), cells=(own,), **changes)
    return judged(whole, cells=(own,))


BANDS = {
    ("acceptance-below-40", 0.3, SLOWER): HOLDS,
    ("acceptance-below-40", 0.3, FASTER): FAILS,
    ("acceptance-below-40", 0.3, EITHER): UNTESTED,
    ("acceptance-below-40", 0.4, SLOWER): UNTESTED,
    ("acceptance-below-50", 0.45, SLOWER): HOLDS,
    ("acceptance-below-50", 0.45, FASTER): FAILS,
    ("acceptance-50-65", 0.6, EITHER): HOLDS,
    ("acceptance-50-65", 0.6, FASTER): FAILS,
    ("acceptance-50-65", 0.6, SLOWER): FAILS,
    ("acceptance-50-65", 0.7, EITHER): UNTESTED,
    ("acceptance-above-65", 0.7, FASTER): HOLDS,
    ("acceptance-above-65", 0.7, SLOWER): FAILS,
    ("acceptance-above-70", 0.69, FASTER): UNTESTED,
    ("acceptance-above-70", 1.0, FASTER): HOLDS,
    ("even-at-50", 0.3, FASTER): FAILS,
    ("even-at-50", 0.7, SLOWER): FAILS,
    ("even-at-50", 0.52, FASTER): FAILS,
    ("even-at-50", 0.8, FASTER): UNTESTED,
    ("even-at-50", 0.8, EITHER): UNTESTED,
}


@pytest.mark.parametrize(("name", "rate", "bounds"), BANDS)
def test_bands_of_acceptance(name: str, rate: float, bounds: tuple[float, float, float]) -> None:
    outcome, seen = sighting(accepting(rate, bounds), name)
    assert outcome is BANDS[(name, rate, bounds)]
    assert f"{rate:.0%}" in seen or "clearly" in seen


def test_break_even_is_seen_from_both_sides() -> None:
    cells = tuple(
        cell(arm=ARM.name, segment=segment, acceptance_rate=acceptance(rate))
        for segment, rate in (("copy", 0.8), ("chat", 0.3))
    )
    whole = evidence(parts=(part(*FASTER), part(*SLOWER, "chat")))
    outcome, seen = sighting(judged(whole, cells=cells), "even-at-50")
    assert outcome is HOLDS
    assert "copy: 80%" in seen
    assert "chat: 30%" in seen


@pytest.mark.parametrize(
    ("p10", "parts", "expected"),
    [
        (0.3, (part(*SLOWER),), HOLDS),
        (0.3, (part(*FASTER),), FAILS),
        (0.3, (part(*EITHER),), UNTESTED),
        (0.6, (part(*SLOWER),), UNTESTED),
        (None, (part(*SLOWER),), UNTESTED),
    ],
)
def test_a_low_tenth_of_acceptance(
    p10: float | None, parts: tuple[Any, ...], expected: ArticleOutcome
) -> None:
    assert sighting(accepting(0.7, FASTER, p10=p10, parts=parts), "acceptance-p10")[0] is expected


@pytest.mark.parametrize(
    ("segment", "rate", "arm", "expected"),
    [
        ("creative", 0.45, DRAFT, HOLDS),
        ("creative", 0.7, DRAFT, FAILS),
        ("passage-qa", 0.75, DRAFT, HOLDS),
        ("passage-qa", 0.3, DRAFT, FAILS),
        ("chat", 0.3, DRAFT, UNTESTED),
        ("creative", 0.45, ARM, UNTESTED),
    ],
)
def test_typical_acceptance_by_kind(segment: str, rate: float, arm: Arm, expected: ArticleOutcome) -> None:
    own = cell(arm=arm.name, segment=segment, acceptance_rate=acceptance(rate))
    whole = evidence(arm=arm, overall=comparison(*FASTER, arm=arm.name))
    assert sighting(judged(whole, cells=(own,)), "acceptance-by-kind")[0] is expected


def of_k(**speedups: float) -> Judgement:
    wholes = [
        evidence(
            arm=Arm(name=name, speculation=NGram(k=int(name[1:]))),
            overall=comparison(value - 0.01, value, value + 0.01, arm=name),
            by_metric=(comparison(value - 0.01, value, value + 0.01, arm=name, metric="tpot"),),
        )
        for name, value in speedups.items()
    ]
    return judged(*wholes)


@pytest.mark.parametrize(
    ("name", "speedups", "expected"),
    [
        ("k-at-least-5", {"k3": 1.5, "k7": 1.2}, FAILS),
        ("k-at-least-5", {"k3": 1.2, "k7": 1.5}, HOLDS),
        ("k-at-least-5", {"k4": 1.5, "k5": 1.49}, UNTESTED),
        ("k-at-least-5", {"k5": 1.2, "k7": 1.5}, UNTESTED),
        ("k-at-least-5", {"k4": 1.5}, UNTESTED),
        ("k-3-7", {"k1": 1.5, "k4": 1.2}, FAILS),
        ("k-3-7", {"k5": 1.5, "k15": 1.2}, HOLDS),
        ("k-under-3", {"k2": 1.5}, FAILS),
        ("k-under-3", {"k2": 0.8}, HOLDS),
        ("k-under-3", {"k3": 1.5}, UNTESTED),
    ],
)
def test_draft_lengths(name: str, speedups: dict[str, float], expected: ArticleOutcome) -> None:
    assert sighting(of_k(**speedups), name)[0] is expected


def drafted(bounds: tuple[float, float, float], *, target: int, draft: int) -> Judgement:
    whole = evidence(arm=DRAFT, overall=comparison(*bounds, arm=DRAFT.name))
    return judged(
        whole, provenance=provenance(model="t.gguf"), weight_bytes={"t.gguf": target, "d.gguf": draft}
    )


@pytest.mark.parametrize(
    ("name", "judgement", "expected"),
    [
        ("ratio", drafted(FASTER, target=1000, draft=100), HOLDS),
        ("ratio", drafted(SLOWER, target=1000, draft=100), FAILS),
        ("ratio", drafted(FASTER, target=1000, draft=300), FAILS),
        ("ratio", drafted(SLOWER, target=1000, draft=10), HOLDS),
        ("ratio", drafted(EITHER, target=1000, draft=100), UNTESTED),
        ("ratio", judged(evidence()), UNTESTED),
        ("memory", drafted(FASTER, target=1000, draft=300), HOLDS),
        ("memory", drafted(FASTER, target=1000, draft=100), FAILS),
        ("memory", judged(evidence(arm=DRAFT)), UNTESTED),
        ("tiny-target", drafted(SLOWER, target=10**9, draft=10**8), HOLDS),
        ("tiny-target", drafted(FASTER, target=10**9, draft=10**8), FAILS),
        ("tiny-target", drafted(FASTER, target=10**11, draft=10**9), UNTESTED),
        ("tiny-target", judged(evidence()), UNTESTED),
    ],
)
def test_sizes(name: str, judgement: Judgement, expected: ArticleOutcome) -> None:
    assert sighting(judgement, name)[0] is expected


def at_temperature(label: str, bounds: tuple[float, float, float]) -> Judgement:
    return judged(evidence(parts=(comparison(*bounds, part=Part.TEMPERATURE, label=label),)))


@pytest.mark.parametrize(
    ("name", "label", "bounds", "expected"),
    [
        ("temperature-high", "0.8", SLOWER, HOLDS),
        ("temperature-high", "0.8–1", FASTER, FAILS),
        ("temperature-high", "0.8", EITHER, UNTESTED),
        ("temperature-high", "0.7", SLOWER, UNTESTED),
        ("temperature-low", "0", FASTER, HOLDS),
        ("temperature-low", "0–0.5", SLOWER, FAILS),
        ("temperature-low", "0.6", FASTER, UNTESTED),
    ],
)
def test_temperatures(
    name: str, label: str, bounds: tuple[float, float, float], expected: ArticleOutcome
) -> None:
    assert sighting(at_temperature(label, bounds), name)[0] is expected


@pytest.mark.parametrize(
    ("tokens", "bounds", "expected"),
    [(30.0, SLOWER, HOLDS), (30.0, FASTER, FAILS), (30.0, EITHER, UNTESTED), (80.0, FASTER, UNTESTED)],
)
def test_short_outputs(tokens: float, bounds: tuple[float, float, float], expected: ArticleOutcome) -> None:
    whole = evidence(overall=comparison(*bounds), cells=(cell(output_tokens_mean=tokens),))
    assert sighting(judged(whole), "short-outputs")[0] is expected


def under_load(streams: int, bounds: tuple[float, float, float]) -> Judgement:
    loads = (1, streams)
    parts = tuple(
        comparison(*(FASTER if each == 1 else bounds), part=Part.LOAD, label=f"c={each}") for each in loads
    )
    cells = tuple(cell(load=Concurrency(streams=each)) for each in loads)
    return judged(evidence(parts=parts, cells=cells))


@pytest.mark.parametrize(
    ("name", "streams", "bounds", "expected"),
    [
        ("load-gains", 32, (1.2, 1.23, 1.26), HOLDS),
        ("load-gains", 32, SLOWER, FAILS),
        ("load-gains", 32, (0.9, 1.1, 1.3), UNTESTED),
        ("load-gains", 2, SLOWER, UNTESTED),
        ("load-slows", 32, (0.5, 0.6, 0.7), HOLDS),
        ("load-slows", 32, FASTER, FAILS),
    ],
)
def test_high_load(
    name: str, streams: int, bounds: tuple[float, float, float], expected: ArticleOutcome
) -> None:
    assert sighting(under_load(streams, bounds), name)[0] is expected


def both_ways(look_up: tuple[float, float, float], model: tuple[float, float, float]) -> Judgement:
    rate = cell(arm=ARM.name, segment="copy", acceptance_rate=acceptance(0.9))
    return judged(
        evidence(parts=(part(*look_up),)),
        evidence(
            arm=DRAFT, overall=comparison(*SLOWER, arm=DRAFT.name), parts=(part(*model, arm=DRAFT.name),)
        ),
        cells=(rate,),
    )


def test_look_up_or_draft_model() -> None:
    assert sighting(both_ways(FASTER, SLOWER), "ngram-or-draft")[0] is HOLDS
    assert sighting(both_ways(SLOWER, FASTER), "ngram-or-draft")[0] is FAILS
    assert sighting(judged(evidence()), "ngram-or-draft")[0] is UNTESTED


def test_a_faster_arm_with_a_slower_tail_is_the_articles_mixed_workload() -> None:
    tail = TailRatio(
        arm=ARM.name,
        load=Concurrency(streams=1),
        metric="e2e",
        statistic="P95",
        ratio=estimate(0.7, 0.6, 0.8),
    )
    assert sighting(judged(evidence(tails=(tail,))), "tail")[0] is HOLDS
    fine = replace(tail, ratio=estimate(1.2, 1.1, 1.3))
    assert sighting(judged(evidence(tails=(fine,))), "tail")[0] is UNTESTED


def test_no_speedup_beyond_the_tokens_of_a_step() -> None:
    assert sighting(judged(evidence()), "ceiling")[0] is HOLDS
    per_token = comparison(2.5, 2.6, 2.7, metric="tpot")
    assert sighting(judged(evidence(by_metric=(per_token,))), "ceiling")[0] is FAILS
    # End to end also has the first token, which a step says nothing about.
    assert sighting(judged(evidence(by_metric=())), "ceiling")[0] is UNTESTED
    unknown = evidence(cells=(cell(accepted_length=None),))
    assert sighting(judged(unknown), "ceiling")[0] is UNTESTED


@pytest.mark.parametrize(("seconds", "expected"), [(0.2, HOLDS), (0.05, FAILS), (0.101, UNTESTED)])
def test_the_first_token_behind_a_drafts_prefill(seconds: float, expected: ArticleOutcome) -> None:
    def waiting(arm: str, p50: float) -> Any:
        spread = Percentiles(p50=p50, p95=None, p99=None, intervals={"p50": (p50 * 0.95, p50 * 1.05)})
        return cell(arm=arm, ttft_s=spread)

    whole = evidence(
        arm=DRAFT, cells=(waiting(DRAFT.name, seconds),), baseline_cells=(waiting(BASELINE, 0.1),)
    )
    assert sighting(judged(whole), "ttft")[0] is expected


@pytest.mark.parametrize("state", STATES)
def test_every_rule_has_its_row_in_every_state(state: str) -> None:
    rows = verdict_document(STATES[state]).articles
    assert [row.rule for row in rows] == [rule.name for rule in ARTICLE_RULES]
    for row in rows:
        assert row.says
        assert row.seen
        assert "None" not in row.seen
        assert "nan" not in row.seen
        assert set(row.source.split()) <= {"S0", "S1", "S2", "S3", "S4"}


def test_names_are_unique() -> None:
    names = [rule.name for rule in ARTICLE_RULES]
    assert len(set(names)) == len(names)


ratios = st.floats(0.1, 10.0)


@st.composite
def wholes(draw: st.DrawFn, arm: Arm) -> Evidence:
    def bounds() -> tuple[float, float, float]:
        low, value, high = sorted(draw(st.tuples(ratios, ratios, ratios)))
        return low, value, high

    return evidence(
        arm=arm,
        overall=draw(st.sampled_from([None, comparison(*bounds(), arm=arm.name)])),
        parts=(part(*bounds(), arm=arm.name), comparison(*bounds(), part=Part.TEMPERATURE, label="0.8")),
        cells=(cell(arm=arm.name, acceptance_rate=draw(st.none() | st.builds(acceptance, st.floats(0, 1)))),),
    )


@given(wholes(ARM), wholes(OTHER), wholes(DRAFT))
def test_whatever_was_measured_every_rule_is_looked_at(
    first: Evidence, second: Evidence, third: Evidence
) -> None:
    judgement = judged(first, second, third, cells=(*first.cells, *third.cells))
    assert len(check_articles(judgement)) == len(ARTICLE_RULES)
