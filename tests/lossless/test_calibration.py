"""The martingale test: clean sampling passes, known deviations are found, and bounds err towards silence."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from speclift.lossless.calibration import (
    LIKELIHOOD,
    LOOKUP,
    TokenScore,
    calibrate,
    counts_test,
    detectable,
    foreign_tokens,
    lookups,
    set_test,
    tempered,
    text_tests,
    tokens_needed,
)
from speclift.lossless.gate import Result, Sampled, SetTest, TextTest
from speclift.lossless.sampled import judge_scores, judge_tests, judge_texts, planned_tokens
from speclift.testing.samplers import RULES, Chain, generate

CHAIN = Chain.drawn(tokens=40, spread=2.0, agreement=0.8, seed=2)
TEXTS = 50


@cache
def generated(rule: str, *, tokens: int, seed: int) -> list[tuple[int, int]]:
    """Each token with the one before it, of texts that are drawn side by side."""
    rows = generate(
        CHAIN,
        RULES[rule],
        sequences=TEXTS,
        length=tokens // TEXTS + 1,
        k=3,
        draws=np.random.default_rng(seed),
    )
    return [pair for row in rows.tolist() for pair in pairwise(row)]


@cache
def law_after(token: int, listed: int) -> tuple[tuple[tuple[int, float], ...], float]:
    """The most likely tokens with their probabilities, and the sum of the others."""
    law = CHAIN.target[token]
    best = np.argsort(-law)[:listed]
    tail = max(0.0, 1.0 - float(law[best].sum()))
    return tuple((int(i), float(law[i])) for i in best), tail if tail > 1e-9 else 0.0


@cache
def scores_of(rule: str, *, tokens: int, seed: int = 0, listed: int = 40) -> tuple[TokenScore, ...]:
    scores = []
    for before, said in generated(rule, tokens=tokens, seed=seed):
        top, tail = law_after(before, listed)
        scores.append(
            TokenScore(
                chosen=said,
                top=top,
                tail_low=tail,
                tail_high=tail,
                chosen_probability=float(CHAIN.target[before][said]),
            )
        )
    return tuple(scores)


def judged(rule: str, *, tokens: int, detect: float = 0.05, listed: int = 40) -> Sampled:
    return judge_scores(
        scores_of(rule, tokens=tokens, listed=listed),
        scores_of("rejection", tokens=800, seed=9),
        detect=detect,
    )


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("listed", [40, 10])
def test_a_lossless_sampler_passes(rule: str, listed: int) -> None:
    found = judged(rule, tokens=2500, listed=listed)
    assert found.result is Result.PASS, found.message
    assert found.detectable is not None
    assert found.detectable < 0.05


@pytest.mark.parametrize("rule", ["without-residual", "typical"])
def test_a_broken_sampler_fails(rule: str) -> None:
    found = judged(rule, tokens=6000)
    assert found.result is Result.FAIL, found.message
    assert "p =" in found.message or "p <" in found.message


def test_too_few_tokens_are_inconclusive_and_say_how_many_it_takes() -> None:
    found = judged("rejection", tokens=100, detect=0.02)
    assert found.result is Result.INCONCLUSIVE
    assert "100 tokens scored" in found.message
    assert found.tokens_needed > 100


def test_tokens_from_elsewhere_are_found_whether_or_not_the_whole_law_is_listed() -> None:
    draws = np.random.default_rng(4)
    for listed in (40, 10):
        clean = scores_of("rejection", tokens=600, listed=listed)
        assert foreign_tokens(clean) > 0.01
        salad = [
            TokenScore(
                chosen=1000 + int(draws.integers(1000)),
                top=score.top,
                tail_low=score.tail_low,
                tail_high=score.tail_high,
                chosen_probability=1e-9,
            )
            if index % 100 == 0
            else score
            for index, score in enumerate(clean)
        ]
        assert foreign_tokens(salad) < 1e-4


def test_a_cut_that_moves_for_the_baseline_too_is_no_token_from_elsewhere() -> None:
    def server(outside: int, tokens: int = 200) -> list[TokenScore]:
        return [
            TokenScore(chosen=9 if index < outside else 1, top=((1, 1.0),), tail_low=0.0, tail_high=0.0)
            for index in range(tokens)
        ]

    assert foreign_tokens(server(6)) < 1e-3
    assert foreign_tokens(server(6), control=server(4)) > 0.1
    assert foreign_tokens(server(40), control=server(4)) < 1e-6


def test_a_baseline_that_misses_its_own_scores_leaves_only_the_difference_to_judge() -> None:
    """A server setting that scoring does not see: both servers miss alike, and neither is at fault."""
    flat = Chain(
        target=np.sqrt(CHAIN.target) / np.sqrt(CHAIN.target).sum(axis=1, keepdims=True), draft=CHAIN.draft
    )

    def mistaken(seed: int) -> list[TokenScore]:
        laws = [
            tuple((token, float(law[token])) for token, _ in law_after(before, 40)[0])
            for before, law in enumerate(flat.target)
        ]
        return [
            TokenScore(chosen=said, top=laws[before], tail_low=0.0, tail_high=0.0)
            for before, said in generated("rejection", tokens=3000, seed=seed)
        ]

    scores = mistaken(1)
    alone = judge_scores(scores, [], detect=0.05)
    beside = judge_scores(scores, mistaken(2), detect=0.05)
    assert alone.result is Result.FAIL
    assert beside.result is not Result.FAIL, beside.message


@pytest.mark.parametrize(
    ("baseline_p", "result"), [(1.0, Result.FAIL), (0.01, Result.FAIL), (1e-6, Result.PASS)]
)
def test_tokens_from_elsewhere_fail_an_arm_unless_the_baseline_says_them_too(
    baseline_p: float, result: Result
) -> None:
    tests, control = (calibrate(scores_of("rejection", tokens=3000, seed=seed)) for seed in (1, 2))
    found = judge_tests(tests, control, detect=0.05, foreign_p=1e-9, control_foreign_p=baseline_p)
    assert found.result is result
    assert ("impossible for the target" in found.message) is (result is Result.FAIL)


def test_the_number_of_tokens_follows_from_the_deviation() -> None:
    needed = tokens_needed(0.02, alpha=0.01, power=0.9, variance=0.25)
    assert needed == math.ceil((2.5758 + 1.2816) ** 2 * 0.25 / 0.0004)
    assert detectable(needed, alpha=0.01, power=0.9, variance=0.25) <= 0.02
    assert detectable(0, alpha=0.01, power=0.9) == math.inf
    assert planned_tokens(0.02) == pytest.approx(4 * planned_tokens(0.04), rel=0.01)


class TestTemperature:
    LOGS = {0: math.log(0.5), 1: math.log(0.3), 2: math.log(0.1)}  # noqa: RUF012

    def test_at_1_the_tail_is_what_is_left(self) -> None:
        top, low, high = tempered(self.LOGS, temperature=1.0)
        assert [mass for _, mass in top] == pytest.approx([0.5, 0.3, 0.1])
        assert low == high == pytest.approx(0.1)

    def test_below_1_the_truth_lies_within_the_bounds(self) -> None:
        law = np.array([0.5, 0.3, 0.1, 0.06, 0.04])
        powered = law ** (1 / 0.7)
        powered /= powered.sum()
        top, low, high = tempered(self.LOGS, temperature=0.7)
        assert low <= powered[3:].sum() <= high
        assert high < 0.1
        assert dict(top)[0] * (1 - high) <= powered[0] <= dict(top)[0]

    @pytest.mark.parametrize("temperature", [0.0, 1.3])
    def test_what_the_list_cannot_bound_is_refused(self, temperature: float) -> None:
        with pytest.raises(ValueError, match="do not follow"):
            tempered(self.LOGS, temperature=temperature)

    def test_bounds_move_the_test_towards_silence(self) -> None:
        sharp = [TokenScore(chosen=1, top=((0, 0.6), (1, 0.4)), tail_low=0.0, tail_high=0.0)] * 200
        loose = [TokenScore(chosen=1, top=((0, 0.6), (1, 0.4)), tail_low=0.0, tail_high=0.5)] * 200
        first = {test.name: abs(test.z) for test in calibrate(sharp)}
        second = {test.name: abs(test.z) for test in calibrate(loose)}
        assert second["top-1"] < first["top-1"]


def test_a_lookup_offers_what_followed_the_same_three_tokens() -> None:
    assert lookups([1, 2, 3, 4, 9], [1, 2, 3, 4, 5]) == [None, None, None, 4, 9]


class TestTexts:
    def test_texts_alone_never_prove_that_nothing_changed(self) -> None:
        pairs = [(f"word {i} and more", f"word {i} or less") for i in range(20)]
        found = judge_texts(text_tests(pairs, seed=0), detect=0.02, identity=None, why_not_scored="no scores")
        assert found.result is not Result.PASS

    def test_a_gross_difference_fails(self) -> None:
        pairs = [("the river runs down to the sea " * 4, "xq zzt") for _ in range(20)]
        found = judge_texts(text_tests(pairs, seed=0), detect=0.02, identity=None, why_not_scored="no scores")
        assert found.result is Result.FAIL

    def test_the_same_texts_are_no_alarm(self) -> None:
        pairs = [(f"a text {i}", f"a text {i}") for i in range(12)]
        assert {test.p_value for test in text_tests(pairs, seed=0)} == {1.0}

    def test_few_pairs_are_not_tested(self) -> None:
        assert text_tests([("a", "b")] * 3, seed=0) == ()


class TestByHand:
    """Tokens few enough to add up on paper."""

    def score(self, chosen: int = 1, **changes: Any) -> TokenScore:
        """Six of ten for token 1, three for token 2, one for all others."""
        known = TokenScore(chosen=chosen, top=((1, 0.6), (2, 0.3)), tail_low=0.1, tail_high=0.1)
        return replace(known, **changes)

    def judged_of(self, *scores: TokenScore) -> dict[str, SetTest]:
        return {test.name: test for test in calibrate(scores)}

    def test_a_lookup_is_judged_where_it_drafts_a_listed_token(self) -> None:
        drafting = [self.score(1, lookup=1), self.score(1, lookup=2)]
        silent = [self.score(1, lookup=None), self.score(9, lookup=9)]
        judged = self.judged_of(*drafting, *silent)[LOOKUP]
        assert (judged.tokens, judged.observed) == (2, 1.0)
        assert judged.expected == pytest.approx(0.6 + 0.3)
        assert judged.variance == pytest.approx(0.6 * 0.4 + 0.3 * 0.7)
        assert LOOKUP not in self.judged_of(*silent)

    def test_the_middle_of_the_bounds_is_expected_and_half_their_distance_left_open(self) -> None:
        open_tail = self.score(top=((1, 0.6), (2, 0.4)), tail_low=0.0, tail_high=0.2, lookup=2)
        judged = self.judged_of(open_tail)
        assert (judged["top-1"].expected, judged["top-1"].slack) == pytest.approx((0.54, 0.054))
        assert (judged["top-3"].expected, judged["top-3"].slack) == pytest.approx((0.9, 0.09))
        assert (judged[LOOKUP].expected, judged[LOOKUP].slack) == pytest.approx((0.36, 0.036))
        mean = 0.54 * math.log(0.54) + 0.36 * math.log(0.36) + 0.1 * math.log(0.1)
        assert judged[LIKELIHOOD].slack == pytest.approx(0.1 * (mean - math.log(0.1)))

    def test_a_known_tail_leaves_nothing_open(self) -> None:
        assert set_test("known", np.array([True]), np.array([0.6])).slack == 0.0
        assert {test.slack for test in calibrate([self.score(lookup=1)])} == {0.0}

    @pytest.mark.parametrize(("chosen", "mass"), [(1, 0.6), (2, 0.3), (7, 0.1)])
    def test_the_likelihood_has_the_mean_and_variance_of_the_law(self, chosen: int, mass: float) -> None:
        judged = self.judged_of(self.score(chosen))[LIKELIHOOD]
        law = (0.6, 0.3, 0.1)
        mean = sum(p * math.log(p) for p in law)
        assert judged.observed == pytest.approx(math.log(mass))
        assert judged.expected == pytest.approx(mean)
        assert judged.variance == pytest.approx(sum(p * (math.log(p) - mean) ** 2 for p in law))

    def test_tokens_outside_a_law_that_is_listed_whole_are_counted(self) -> None:
        """Five of a thousand where a moved cut explains one: what a Poisson law of mean 1 gives to five or more."""
        whole = {"top": ((1, 0.6), (2, 0.4)), "tail_low": 0.0, "tail_high": 0.0}
        scores = [self.score(9, **whole)] * 5 + [self.score(1, **whole)] * 995
        five_or_more = 1 - math.exp(-1) * sum(1 / math.factorial(n) for n in range(5))
        assert foreign_tokens(scores) == pytest.approx(2 * five_or_more)
        assert foreign_tokens(scores, control=scores) > 0.5
        assert foreign_tokens([self.score(1, **whole)] * 10) == 1.0

    def test_only_tokens_beyond_the_list_are_held_against_a_uniform_law(self) -> None:
        hardly = 1e-9
        beyond = self.score(9, chosen_probability=hardly)
        factor = 0.99 + 0.01 / 2**18 / hardly
        assert foreign_tokens([beyond]) == pytest.approx(2 / factor)
        assert foreign_tokens([replace(beyond, chosen_probability=None)]) == 1.0
        whole = self.score(
            1, top=((1, 0.6), (2, 0.4)), tail_low=0.0, tail_high=0.0, chosen_probability=hardly
        )
        assert foreign_tokens([whole]) == 1.0

    def test_a_test_says_how_far_off_it_is_beyond_what_is_left_open(self) -> None:
        def judged(observed: float, variance: float = 25.0, tokens: int = 100) -> SetTest:
            counted = {"observed": observed, "expected": 50.0, "variance": variance, "slack": 4.0}
            return counts_test("top-1", tokens=tokens, **counted)

        assert (judged(60.0).z, judged(60.0).deviation) == pytest.approx((1.2, 0.1))
        assert judged(40.0).z == pytest.approx(-1.2)
        assert judged(53.0).z == 0.0
        assert judged(60.0, variance=0.0).z == 0.0
        assert judged(60.0, tokens=0).deviation == 0.0

    def test_what_n_tokens_can_find_is_what_takes_n_tokens(self) -> None:
        """At 5 % and a power of 80 %: 1.96 + 0.84 standard errors."""
        assert detectable(400, alpha=0.05, power=0.8) == pytest.approx(2.8016 * 0.5 / 20, rel=1e-4)
        assert tokens_needed(0.07, alpha=0.05, power=0.8) == math.ceil((2.80158 * 0.5 / 0.07) ** 2)
        assert detectable(0, alpha=0.05, power=0.8) == math.inf

    def test_probabilities_at_the_temperature_they_were_told_at_stay_what_they_are(self) -> None:
        listed, low, high = tempered({1: math.log(0.6), 2: math.log(0.3)}, temperature=1.0)
        assert dict(listed) == pytest.approx({1: 0.6, 2: 0.3})
        assert (low, high) == pytest.approx((0.1, 0.1))
        too_much, _, _ = tempered({1: math.log(0.8), 2: math.log(0.4)}, temperature=1.0)
        assert dict(too_much) == pytest.approx({1: 2 / 3, 2: 1 / 3})

    def test_below_it_the_unlisted_weigh_at_most_what_the_least_listed_would_let_them(self) -> None:
        """At 0.5 weights are squares: 0.36 and 0.09 listed, at most 0.1 x 0.3 beyond."""
        listed, low, high = tempered({1: math.log(0.6), 2: math.log(0.3)}, temperature=0.5)
        assert dict(listed) == pytest.approx({1: 0.8, 2: 0.2})
        assert (low, high) == pytest.approx((0.0, 0.03 / 0.48))


class TestAgainstTheBaselinesOwnScores:
    def scored(self, observed: float, name: str = "top-1") -> SetTest:
        """2,000 tokens of even odds: 1,000 hits are expected."""
        return counts_test(name=name, tokens=2000, observed=observed, expected=1000.0, variance=500.0)

    @pytest.mark.parametrize(
        ("arm", "control", "fails"),
        [
            pytest.param(1200, 1000, True, id="the arm alone is off"),
            pytest.param(1200, 1200, False, id="both are off alike"),
            pytest.param(1200, 800, True, id="both are off, to different sides"),
            pytest.param(1400, 1120, True, id="the arm is off by far more"),
            pytest.param(1200, 1130, False, id="the arm is off by hardly more"),
        ],
    )
    def test_only_the_difference_counts_where_the_baseline_misses_them_too(
        self, arm: float, control: float, fails: bool
    ) -> None:
        judged = judge_tests([self.scored(arm)], [self.scored(control)], detect=0.05, foreign_p=1.0)
        assert (judged.result is Result.FAIL) is fails

    def test_a_baseline_that_misses_another_test_excuses_nothing(self) -> None:
        control = [self.scored(1200, "top-3"), self.scored(1000)]
        assert judge_tests([self.scored(1200)], control, detect=0.05, foreign_p=1.0).result is Result.FAIL


class TestWords:
    """What is said of a test that failed."""

    def failed(self, *tests: SetTest, foreign_p: float = 1.0) -> str:
        judged = judge_tests(tests, (), detect=0.05, foreign_p=foreign_p)
        assert judged.result is Result.FAIL
        return judged.message

    def test_a_set_is_told_by_how_often_it_was_hit(self) -> None:
        def hit(observed: float, name: str = "top-1") -> SetTest:
            return counts_test(name, tokens=2000, observed=observed, expected=1000.0, variance=500.0)

        quiet, often = hit(1000.0, "top-3"), hit(1120.0)
        assert self.failed(quiet, often).startswith("top-1: sampled 56.0% of the time, expected 50.0% (p = ")
        assert "p < 1e-15" in self.failed(hit(1500.0))

    def test_a_likelihood_is_told_in_nats(self) -> None:
        likely = counts_test(
            name=LIKELIHOOD, tokens=2000, observed=-5000.0, expected=-4000.0, variance=2000.0
        )
        assert self.failed(likely).startswith(
            "log-likelihood under the target is -2.50 nats per token, expected -2.00"
        )

    def test_tokens_from_elsewhere_are_told_without_a_set(self) -> None:
        quiet = counts_test(name="top-1", tokens=2000, observed=1000.0, expected=1000.0, variance=500.0)
        message = self.failed(quiet, foreign_p=1e-9)
        assert message == "some of 2000 tokens are impossible for the target (p = 1e-09)"

    @pytest.mark.parametrize(("p_value", "result"), [(0.0009, Result.INCONCLUSIVE), (1e-5, Result.FAIL)])
    def test_of_several_tests_of_texts_each_must_be_the_surer(self, p_value: float, result: Result) -> None:
        tests = [TextTest(name="words", pairs=30, baseline=40.0, arm=41.0, p_value=0.6)] * 11
        tests.append(TextTest(name="used", pairs=30, baseline=40.0, arm=41.0, p_value=p_value))
        judged = judge_texts(tuple(tests), detect=0.02, identity=None, why_not_scored="")
        assert judged.result is result


class TestWhatTextsShow:
    def p_values(self, pairs: list[tuple[str, str]]) -> dict[str, float]:
        return {test.name: test.p_value for test in text_tests(pairs, seed=0)}

    def test_repeating_oneself_shows_in_pairs_of_words_alone(self) -> None:
        """As many words of the same kinds; the arm's come round again."""
        pairs = [("a b c d a c b d b a d c", "a b c d a b c d a b c d")] * 30
        tests = {test.name: test for test in text_tests(pairs, seed=0)}
        distinct = tests["distinct pairs of words"]
        assert (distinct.baseline, distinct.arm) == pytest.approx((1.0, 4 / 11))
        assert distinct.p_value < 0.001
        assert (tests["words"].p_value, tests["words used"].p_value) == (1.0, 1.0)

    def test_rare_words_of_one_side_show_beside_common_words_that_vary(self) -> None:
        """Every answer of the arm has one word that the baseline never says; `the` comes and goes by chance."""
        random = np.random.default_rng(5)
        pairs = [
            ("the " * int(first), "the " * int(second) + "zyx")
            for first, second in random.integers(20, 60, size=(40, 2))
        ]
        assert self.p_values(pairs)["words used"] < 0.01
