"""The articles' rules of thumb, each held against studies in which it holds, does not hold, and cannot be tested."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from answers import STATES, judged, part
from samples import provenance
from simulated import ARM, OTHER, cell, comparison, evidence
from speclift.core.arm import Arm
from speclift.core.results import Acceptance, Evidence, Part
from speclift.core.speculation import DraftModel, NGram
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
