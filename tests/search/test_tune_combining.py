"""A look-up with a model behind it: a k for each, predicted from what the parts did alone."""

from __future__ import annotations

import pytest
from tune_samples import FormulaEngine, finish, plain_step_s

from speclift.core.arm import Arm, baseline_arm
from speclift.core.drafting import Template
from speclift.core.speculation import Combined, DraftModel, NGram
from speclift.core.traffic import Concurrency
from speclift.search.counts import RequestCounts, keeping_longer_drafts
from speclift.search.predictor import AcceptanceRun, accepted_lengths
from speclift.search.problem import Problem
from speclift.search.search import Search, start
from speclift.search.space import Candidate, with_k

DRAFT = DraftModel(model="tiny")
ALONE = Concurrency(streams=1)


def behind(k: int) -> Combined:
    return Combined(parts=(NGram(n=4, k=k), DRAFT))


def problem(*templates: tuple[str, Template, tuple[int, ...]]) -> Problem:
    arms = [Candidate(arm=baseline_arm())]
    for name, template, ks in templates:
        arms += [
            Candidate(arm=Arm(name=f"{name}-k{k}", speculation=with_k(template, k)), drafter=name) for k in ks
        ]
    return Problem(candidates=tuple(arms), loads=(ALONE,))


EVERYTHING = (
    ("ngram", NGram(n=4), (5, 7, 15)),
    ("draft", DRAFT, (2, 4, 7)),
    ("ngram-k7+draft", behind(7), (2, 4, 7)),
    ("ngram-k15+draft", behind(15), (2, 4, 7)),
)


class TestCounts:
    def both(self) -> RequestCounts:
        """Two look-ups of 15 that gave 12 and 15, four drafts of 7, two plain steps."""
        return RequestCounts(
            request_id="r",
            tokens=12 + 15 + 7 + 3 + 0 + 5 + 8,
            steps=8,
            without_draft=2,
            accepted=(12, 7, 15, 3, 0, 5),
            drafted=(15, 7, 15, 7, 7, 7),
        )

    def test_longer_drafts_than_the_models_are_the_look_ups(self) -> None:
        parted = keeping_longer_drafts(self.both(), 7)
        assert (parted.accepted, parted.drafted) == ((7, 3, 0, 5), (7, 7, 7, 7))
        assert (parted.kept_steps, parted.kept_drafted) == (2, 30)
        assert (parted.tokens, parted.steps) == (self.both().tokens, 8)
        assert parted.is_ordered

    def test_at_another_k_of_the_model_the_look_ups_steps_stay(self) -> None:
        """At k = 3: look-ups 2 steps, plain 2, and ceil((a + 1) / 4) of 3, 0 and 5 with 7 in full, which leaves open
        whether the token after it was right: 2 or 3 steps of 8 tokens."""
        requests = (keeping_longer_drafts(self.both(), 7),)
        at = accepted_lengths([AcceptanceRun(k=7, requests=requests)], (3, 7), prefix_only=True).at(3)
        steps = 2 + 2 + 2 + 1 + 1 + 2
        assert at.length.value == pytest.approx(self.both().tokens / steps, rel=0.02)
        assert at.drafted == pytest.approx((30 + 3 * 6) / steps, rel=0.05)
        assert at.drafting == pytest.approx((steps - 2) / steps, rel=0.02)

    def test_a_head_behind_a_look_up_is_truncated_and_the_look_up_is_not(self) -> None:
        requests = (keeping_longer_drafts(self.both(), 7),)
        at = accepted_lengths([AcceptanceRun(k=7, requests=requests)], (3, 7), prefix_only=False).at(3)
        assert at.length.value == pytest.approx((self.both().tokens - 4 - 2) / 8)


def asked(search: Search) -> list[str]:
    return [job.candidate for job in search.ask()]


class TestSearch:
    def run_parts(self, engine: FormulaEngine) -> Search:
        search = start(problem(*EVERYTHING))
        for job in search.ask():
            search = search.tell(engine.run(search.problem, job))
        return search

    def test_one_is_run_with_the_k_that_is_best_for_the_look_up_alone(self) -> None:
        """Drafting pays, and to verify 15 tokens costs more than it gives."""

        def step_s(candidate: Candidate, batch: int) -> float:
            return 0.01 * batch * (0.8 + 0.2 * (1 + candidate.k))

        search = self.run_parts(FormulaEngine(step_s=step_s))
        assert asked(search) == ["ngram-k7+draft-k7"]
        out = {each.candidate: each.reason for each in search.eliminated}
        assert "its look-up alone is best at k=" in out["ngram-k15+draft-k4"]
        assert not any(name.startswith("ngram-k7+draft") for name in out)

    def test_none_is_run_where_the_model_alone_is_slower_than_nothing(self) -> None:
        def step_s(candidate: Candidate, batch: int) -> float:
            return plain_step_s(candidate, batch) * (9.0 if candidate.arm.method == "draft" else 1.0)

        search = self.run_parts(FormulaEngine(step_s=step_s))
        assert not any("+" in name for name in asked(search))
        reasons = {each.reason for each in search.eliminated if "+" in each.candidate}
        assert reasons == {
            "draft alone is no faster than the baseline, and would draft where the look-up finds nothing"
        }

    def test_a_model_that_does_not_start_is_not_tried_behind_a_look_up(self) -> None:
        engine = FormulaEngine()
        engine.failing = {f"draft-k{k}": "no memory" for k in (2, 4, 7)}
        search = finish(start(problem(*EVERYTHING)), engine)
        assert not any("+" in result.job.candidate for result in search.results)
