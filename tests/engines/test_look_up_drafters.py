"""The drafters that look only at the text, against the rule of each engine written out slowly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from speclift.engines.llamacpp.drafters import simple_offers, simple_offers_at
from speclift.engines.vllm.drafters import first_match_offers, latest_match_offers
from speclift.replayer.counts import UNLIMITED, Counts, LoggedAnswer, batch_of, walk


def vllm_draft(text: list[int], k: int, *, n_min: int, n_max: int) -> list[int]:
    for n in range(min(n_max, len(text) - 1), n_min - 1, -1):
        for start in range(len(text) - n):
            if text[start : start + n] == text[-n:]:
                return text[start + n : start + n + k]
    return []


def vllm_gpu_draft(text: list[int], k: int, *, n_min: int, n_max: int) -> list[int]:
    for n in range(min(n_max, len(text) - 1), n_min - 1, -1):
        for start in range(len(text) - n - 1, -1, -1):
            if text[start : start + n] == text[-n:]:
                copied = text[start + n : start + n + k]
                return copied + [text[-1]] * (k - len(copied))
    return [text[-1]] * k


def simple_draft(text: list[int], k: int, *, n: int) -> list[int]:
    history = text[:-1]
    if len(history) <= n + k + 1:
        return []
    for start in range(len(history) - n - 1, 0, -1):
        if history[start : start + n] == text[-n:]:
            copied = history[start + n : start + n + k]
            return copied if len(copied) >= n else []
    return []


@dataclass(frozen=True)
class Slow:
    steps: int
    drafting: int
    drafted: int
    accepted: int


def decode(
    answer: LoggedAnswer, draft: Callable[[list[int]], list[int]], *, cut_to_budget: bool = False
) -> Slow:
    """One step after the other, as a server does it."""
    text, response = answer.prompt.tolist(), answer.response.tolist()
    done, steps, drafting, drafted, accepted = 1, 0, 0, 0, 0
    while done < len(response):
        proposed = draft(text + response[:done])
        if cut_to_budget:
            proposed = proposed[: max(answer.budget - done - 1, 0)]
        taken = 0
        while taken < len(proposed) and [proposed[taken]] == response[done + taken : done + taken + 1]:
            taken += 1
        steps, drafting, drafted = steps + 1, drafting + bool(proposed), drafted + len(proposed)
        accepted += taken
        done += taken + 1
    return Slow(steps, drafting, drafted, accepted)


def assert_same(counts: Counts, slow: Sequence[Slow]) -> None:
    assert counts.steps.tolist() == [each.steps for each in slow]
    assert counts.drafting.tolist() == [each.drafting for each in slow]
    assert counts.drafted.tolist() == [each.drafted for each in slow]
    assert counts.accepted.tolist() == [each.accepted for each in slow]


def answer_of(prompt: Sequence[int], response: Sequence[int], budget: int = UNLIMITED) -> LoggedAnswer:
    return LoggedAnswer(
        prompt=np.array(prompt, dtype=np.int64),
        response=np.array(response, dtype=np.int64),
        segment="any",
        budget=budget,
    )


# Few different tokens, so that everything has stood somewhere before.
tokens = st.lists(st.integers(0, 3), max_size=40)
answers = st.lists(
    st.builds(answer_of, tokens, st.lists(st.integers(0, 3), min_size=1, max_size=40)), min_size=1, max_size=4
)
small = st.integers(1, 4)


class TestVllm:
    @given(answers, small, small, st.integers(1, 7))
    def test_walks_every_answer_as_the_proposer_would(
        self, given_answers: list[LoggedAnswer], n_min: int, extra: int, k: int
    ) -> None:
        n_max = n_min + extra - 1
        batch = batch_of(given_answers)
        offers = first_match_offers(batch, n_min=n_min, n_max=n_max, k_max=9)

        slow = [
            decode(each, lambda text: vllm_draft(text, k, n_min=n_min, n_max=n_max)) for each in given_answers
        ]
        assert_same(walk(batch, offers, k), slow)


class TestVllmOnItsSecondRunner:
    @given(answers, small, small, st.integers(1, 7))
    def test_walks_every_answer_as_the_kernel_would(
        self, given_answers: list[LoggedAnswer], n_min: int, extra: int, k: int
    ) -> None:
        n_max = n_min + extra - 1
        batch = batch_of(given_answers)
        offers = latest_match_offers(batch, n_min=n_min, n_max=n_max, k_max=k)

        slow = [
            decode(each, lambda text: vllm_gpu_draft(text, k, n_min=n_min, n_max=n_max))
            for each in given_answers
        ]
        assert_same(walk(batch, offers, k), slow)


class TestLlamaCppSimple:
    @given(answers, small, st.integers(1, 7), st.integers(0, 5))
    def test_walks_every_answer_as_the_server_would(
        self, given_answers: list[LoggedAnswer], n: int, k: int, spare: int
    ) -> None:
        limited = [
            answer_of(each.prompt.tolist(), each.response.tolist(), len(each.response) + spare)
            for each in given_answers
        ]
        batch = batch_of(limited)
        offers = simple_offers_at(batch, simple_offers(batch, n=n, k_max=9), n=n, k=k)

        slow = [decode(each, lambda text: simple_draft(text, k, n=n), cut_to_budget=True) for each in limited]
        assert_same(walk(batch, offers, k), slow)


class TestTheWalk:
    def test_an_answer_that_ends_inside_a_draft_still_took_that_step(self) -> None:
        batch = batch_of([answer_of([1, 2, 3, 4, 5, 6, 1], [2, 3, 4, 5])])
        counts = walk(batch, first_match_offers(batch, n_min=2, n_max=2, k_max=8), 8)

        assert (counts.steps.tolist(), counts.accepted.tolist()) == ([1], [3])
