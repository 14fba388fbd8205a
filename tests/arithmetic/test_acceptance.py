from __future__ import annotations

import math
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speclift.arithmetic.acceptance import (
    accepted_length,
    best_k,
    break_even_acceptance,
    conditional_rates,
    expected_length,
    iid_length,
    iid_speedup,
    survival,
)
from speclift.core.records import Step
from speclift.http.counts import steps_from_cumulative, with_steps_without_draft

Chunk = tuple[int, int, int]


def step(drafted: int, accepted: int) -> Step:
    return Step(drafted=drafted, accepted=accepted)


def chunks_of(steps: list[Step]) -> list[Chunk]:
    """What a server that sends one chunk per token reports: the prefill's token, then each step's."""
    chunks = [(1, 0, 0)]
    drafted = accepted = 0
    for each in steps:
        drafted, accepted = drafted + each.drafted, accepted + each.accepted
        chunks += [(chunks[-1][0] + place, drafted, accepted) for place in range(1, each.accepted + 2)]
    return chunks


def read(chunks: list[Chunk]) -> tuple[Step, ...]:
    return steps_from_cumulative(*([chunk[column] for chunk in chunks] for column in range(3)))


any_step = st.integers(0, 8).flatmap(
    lambda drafted: st.builds(step, st.just(drafted), st.integers(0, drafted))
)
any_steps = st.lists(any_step, max_size=30)


class TestSurvival:
    def test_counts_every_step_including_those_that_drafted_less_or_nothing(self) -> None:
        steps = [step(3, 3), step(3, 1), step(1, 1), step(0, 0)]
        assert survival(steps, 3) == (0.75, 0.25, 0.25)

    def test_a_longer_draft_than_asked_for_counts_up_to_k(self) -> None:
        assert survival([step(5, 5), step(5, 0)], 2) == (0.5, 0.5)

    @settings(deadline=None)
    @given(steps=any_steps.filter(bool))
    def test_gives_the_tokens_per_step_that_were_output(self, steps: list[Step]) -> None:
        tokens = 1 + sum(each.accepted + 1 for each in steps)
        length = accepted_length(tokens, sum(each.accepted for each in steps))
        assert length == pytest.approx(expected_length(survival(steps, 8)))

    @settings(deadline=None)
    @given(steps=any_steps.filter(bool))
    def test_never_rises_with_the_position(self, steps: list[Step]) -> None:
        rates = survival(steps, 8)
        assert list(rates) == sorted(rates, reverse=True)

    def test_refuses_no_steps_at_all(self) -> None:
        with pytest.raises(ValueError, match="saw none"):
            survival([], 4)

    def test_refuses_no_positions(self) -> None:
        with pytest.raises(ValueError, match="k=0"):
            survival([step(1, 1)], 0)


class TestConditionalRates:
    def test_multiply_back_to_survival(self) -> None:
        rates = conditional_rates((0.8, 0.4, 0.1))
        assert rates == pytest.approx((0.8, 0.5, 0.25))

    def test_are_unknown_past_a_position_nobody_reached(self) -> None:
        assert conditional_rates((0.5, 0.0, 0.0)) == (0.5, 0.0, None)

    def test_of_nothing_are_nothing(self) -> None:
        assert conditional_rates(()) == ()


class TestAcceptedLength:
    @pytest.mark.parametrize(
        ("output_tokens", "accepted", "length"),
        [
            (101, 0, 1.0),
            (101, 50, 2.0),
            (24, 16, 23 / 7),
            (1, 0, None),
            (0, 0, None),
            (5, 4, None),
            (5, 6, None),
        ],
        ids=[
            "nothing accepted is one token per step",
            "half accepted is two tokens per step",
            "a real llama.cpp request",
            "only the prefill's token",
            "no token",
            "as many accepted as decoded leaves no step",
            "more accepted than output",
        ],
    )
    def test_is_tokens_over_steps(self, output_tokens: int, accepted: int, length: float | None) -> None:
        assert accepted_length(output_tokens, accepted) == length

    def test_refuses_negative_counts(self) -> None:
        with pytest.raises(ValueError, match="negative"):
            accepted_length(10, -1)


class TestIid:
    @pytest.mark.parametrize(("alpha", "k"), [(0.0, 4), (0.3, 1), (0.8, 7), (0.999, 3)])
    def test_length_is_the_closed_form(self, alpha: float, k: int) -> None:
        assert iid_length(alpha, k) == pytest.approx((1 - alpha ** (k + 1)) / (1 - alpha))

    def test_length_at_full_acceptance_is_k_plus_one(self) -> None:
        assert iid_length(1.0, 5) == 6.0

    # k* and speedups as published with the method; they were computed independently of this code.
    @pytest.mark.parametrize(
        ("alpha", "cost", "k", "speedup"),
        [
            (0.6, 0.02, 6, 2.17),
            (0.6, 0.1, 3, 1.67),
            (0.8, 0.02, 11, 3.82),
            (0.8, 0.1, 6, 2.47),
            (0.9, 0.05, 13, 4.67),
            (0.9, 0.2, 7, 2.37),
        ],
    )
    def test_best_k_and_its_speedup_match_worked_examples(
        self, alpha: float, cost: float, k: int, speedup: float
    ) -> None:
        assert best_k(alpha, cost, 32) == k
        assert iid_speedup(alpha, cost, k) == pytest.approx(speedup, abs=0.005)

    def test_best_k_is_zero_where_drafting_never_pays(self) -> None:
        assert best_k(0.1, 0.5, 16) == 0

    def test_best_k_stops_at_the_limit(self) -> None:
        assert best_k(1.0, 0.01, 5) == 5

    @pytest.mark.parametrize("alpha", [-0.1, 1.1, math.nan])
    def test_refuses_what_is_no_probability(self, alpha: float) -> None:
        with pytest.raises(ValueError, match="probability"):
            iid_length(alpha, 3)

    def test_refuses_a_negative_draft_length(self) -> None:
        with pytest.raises(ValueError, match="saw -1"):
            iid_length(0.5, -1)

    def test_refuses_a_negative_cost(self) -> None:
        with pytest.raises(ValueError, match="less than nothing"):
            iid_speedup(0.5, -0.1, 3)


class TestBreakEven:
    @settings(deadline=None)
    @given(k=st.integers(1, 16), alpha=st.floats(0.01, 1.0))
    def test_is_the_acceptance_whose_length_pays_the_step(self, k: int, alpha: float) -> None:
        found = break_even_acceptance(k, iid_length(alpha, k))
        assert found == pytest.approx(alpha, abs=1e-9)

    def test_is_zero_where_a_step_costs_no_more_than_a_plain_one(self) -> None:
        assert break_even_acceptance(4, 0.9) == 0.0

    def test_does_not_exist_where_full_acceptance_is_too_little(self) -> None:
        assert break_even_acceptance(4, 5.01) is None

    @pytest.mark.parametrize(("k", "ratio"), [(0, 2.0), (4, 0.0), (4, math.nan)])
    def test_refuses_impossible_inputs(self, k: int, ratio: float) -> None:
        with pytest.raises(ValueError, match="saw"):
            break_even_acceptance(k, ratio)


class TestStepsFromCumulative:
    def test_reads_a_real_llama_cpp_stream(self) -> None:
        counters = [0] * 3 + [4] * 5 + [8] * 5 + [12] * 5 + [16] * 6
        steps = steps_from_cumulative(range(1, 25), counters, counters)
        assert steps == (*[step(0, 0)] * 2, *[step(4, 4)] * 4, step(0, 0))

    @settings(deadline=None)
    @given(steps=any_steps)
    def test_returns_the_steps_that_made_the_chunks(self, steps: list[Step]) -> None:
        assert read(chunks_of(steps)) == tuple(steps)

    @settings(deadline=None)
    @given(steps=any_steps, data=st.data())
    def test_keeps_totals_and_step_count_when_chunks_carry_several_tokens(
        self, steps: list[Step], data: st.DataObject
    ) -> None:
        chunks = chunks_of(steps)
        kept = [data.draw(st.booleans()) for _ in chunks[:-1]]
        seen = [*(chunk for chunk, keep in zip(chunks, kept, strict=False) if keep), chunks[-1]]
        found = read(seen)
        assert sum(each.accepted + 1 for each in found) == chunks[-1][0] - 1
        assert sum(each.drafted for each in found) == chunks[-1][1]
        assert sum(each.accepted for each in found) == chunks[-1][2]
        assert len(found) == len(steps)

    @settings(deadline=None)
    @given(steps=any_steps, lost=st.integers(0, 40))
    def test_a_stream_cut_short_gives_the_steps_begun_by_then(self, steps: list[Step], lost: int) -> None:
        chunks = chunks_of(steps)
        seen = chunks[: max(0, len(chunks) - lost)]
        starts = list(accumulate((each.accepted + 1 for each in steps), initial=2))
        begun = [each for start, each in zip(starts, steps, strict=False) if start <= len(seen)]
        assert read(seen) == tuple(begun)

    def test_a_repeated_last_chunk_adds_no_step(self) -> None:
        chunks = chunks_of([step(4, 2), step(0, 0)])
        assert read([*chunks, chunks[-1]]) == (step(4, 2), step(0, 0))

    def test_a_first_chunk_with_several_tokens_still_leaves_the_first_to_prefill(self) -> None:
        assert read([(3, 0, 0), (6, 4, 2)]) == (step(0, 0), step(0, 0), step(4, 2))

    def test_no_chunks_are_no_steps(self) -> None:
        assert read([]) == ()

    @pytest.mark.parametrize(
        "chunks",
        [
            [(1, 4, 2), (2, 3, 2)],
            [(1, 4, 2), (2, 8, 1)],
            [(5, 0, 0), (4, 0, 0)],
            [(1, 0, 0), (2, 2, 3)],
        ],
        ids=["drafted falls", "accepted falls", "tokens fall", "more accepted than drafted"],
    )
    def test_refuses_counters_that_are_not_cumulative(self, chunks: list[Chunk]) -> None:
        with pytest.raises(ValueError, match="not cumulative"):
            read(chunks)

    def test_refuses_columns_of_different_length(self) -> None:
        with pytest.raises(ValueError, match="zip"):
            steps_from_cumulative([1, 2], [0], [0, 0])


class TestStepsWithoutADraft:
    @pytest.mark.parametrize(
        ("drafting", "tokens", "added"),
        [
            # Recorded from vLLM 0.32 with k=4: the first token, a step of 5, and one step without a draft.
            ([step(4, 4)], 7, 1),
            ([step(4, 4)] * 3, 16, 0),
            ([step(4, 4)] * 5, 23, 0),  # the last draft was cut off
            ([], 9, 8),
            ([], 0, 0),
        ],
    )
    def test_are_those_whose_tokens_nothing_else_explains(
        self, drafting: list[Step], tokens: int, added: int
    ) -> None:
        assert with_steps_without_draft(drafting, tokens) == (*drafting, *[step(0, 0)] * added)

    @given(steps=any_steps)
    def test_come_back_in_number_where_nothing_was_cut_off(self, steps: list[Step]) -> None:
        tokens = 1 + sum(each.accepted + 1 for each in steps)
        drafting = [each for each in steps if each.drafted]
        assert len(with_steps_without_draft(drafting, tokens)) == len(steps)


class TestADraftCutOffAtTheEnd:
    """8 tokens: one from the prompt, a step that drafted 3 and kept 3, two without a draft, and one that drafted
    3 of which the end of the answer let 0 of 3 through."""

    DRAFTING = (step(3, 3), step(3, 3))

    @pytest.mark.parametrize(
        ("chunks", "added", "phrase"),
        [
            (5, 2, "one chunk for the prompt and one for each of four steps"),
            (4, 1, "two chunks arrived together: at least this many"),
            (0, 0, "the engine sends no chunks, so the cut draft hides the steps"),
        ],
    )
    def test_chunks_tell_where_a_cut_draft_explains_too_much(
        self, chunks: int, added: int, phrase: str
    ) -> None:
        found = with_steps_without_draft(self.DRAFTING, 8, chunk_count=chunks)
        assert found == (*self.DRAFTING, *[step(0, 0)] * added), phrase
