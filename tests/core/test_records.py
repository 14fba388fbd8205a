from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samples import record
from speclift.core.records import Outcome, Step


class TestTimes:
    def test_count_from_the_intended_send_time_so_that_a_late_client_is_not_hidden(self) -> None:
        late = replace(record(), intended_s=99.0)

        assert late.lag_s == pytest.approx(1.0)
        assert late.ttft_s == pytest.approx(1.2)
        assert late.e2e_s == pytest.approx(1.3)

    def test_time_per_token_leaves_the_first_token_out(self) -> None:
        assert record(tpot_s=0.02).tpot_s == pytest.approx(0.02)

    @given(st.floats(1e-4, 1.0), st.integers(2, 4096))
    def test_time_per_token_does_not_depend_on_how_tokens_were_bundled(
        self, tpot_s: float, tokens: int
    ) -> None:
        whole = replace(
            record(), first_token_s=5.0, last_token_s=5.0 + tpot_s * (tokens - 1), output_tokens=tokens
        )

        assert whole.tpot_s is not None
        assert math.isclose(whole.tpot_s, tpot_s, rel_tol=1e-6)

    @pytest.mark.parametrize("tokens", [None, 0, 1])
    def test_time_per_token_is_unknown_without_two_counted_tokens(self, tokens: int | None) -> None:
        assert replace(record(), output_tokens=tokens).tpot_s is None

    def test_without_any_token_no_time_is_known(self) -> None:
        silent = replace(record(), first_token_s=None, last_token_s=None)

        assert (silent.ttft_s, silent.tpot_s, silent.e2e_s) == (None, None, None)

    @pytest.mark.parametrize("outcome", Outcome)
    def test_only_a_whole_answer_is_ok(self, outcome: Outcome) -> None:
        assert record(outcome=outcome).is_ok == (outcome is Outcome.OK)


class TestDecodeSteps:
    @pytest.mark.parametrize(
        ("tokens", "accepted", "steps"),
        [
            (11, 0, 10),
            (11, 6, 4),
            (1, 0, 0),
            # The last step may accept tokens beyond the limit that were never output.
            (11, 12, 0),
            (0, 0, None),
            (None, 3, None),
            (11, None, None),
        ],
    )
    def test_are_the_tokens_that_were_neither_prefill_nor_accepted(
        self, tokens: int | None, accepted: int | None, steps: int | None
    ) -> None:
        assert replace(record(), output_tokens=tokens, accepted=accepted).decode_steps == steps

    def test_are_at_least_the_steps_that_drafted_though_the_end_cut_a_draft_off(self) -> None:
        # 23 tokens of vLLM 0.32 with k=4: five steps accepted everything, the last one 3 tokens too many.
        steps = (Step(drafted=4, accepted=4),) * 5
        assert replace(record(), output_tokens=23, accepted=20, steps=steps).decode_steps == 5

    def test_are_not_the_chunks_of_a_server_that_sends_what_a_step_gives_token_by_token(self) -> None:
        drafting, by_chunks = (Step(drafted=4, accepted=3),) * 5, (Step(drafted=0, accepted=0),) * 15
        made = replace(record(), output_tokens=21, accepted=15, steps=(*drafting, *by_chunks))
        # Five steps of four tokens each, and three of them perhaps cut off at the end.
        assert (made.decode_steps, made.told_steps[:5]) == (8, drafting)
