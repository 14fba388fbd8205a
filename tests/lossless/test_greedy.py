"""The greedy gate: faults told from ties, and what is not known called so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from speclift.lossless.answers import Compared, Divergence, Kind
from speclift.lossless.gate import Greedy, Result
from speclift.lossless.greedy import control_of, judge_greedy, settled_by_equality

ALONE = {"alone": "alone"}


def pair(margin: float | str | None, *, tokens: float = 50.0, at_least: bool = False) -> Compared:
    """A pair that agrees ('same'), or parts with this margin."""
    if margin == "same":
        return Compared(case="p", tokens=tokens, divergence=None)
    kind = Kind.REFUSED if margin == "refused" else Kind.TOKEN
    divergence = Divergence(
        case="p",
        kind=kind,
        position=5,
        margin=margin if isinstance(margin, float) else None,
        is_at_least=at_least,
        rank=2,
        reference="a",
        answer="b",
    )
    return Compared(case="p", tokens=0.0 if kind is Kind.REFUSED else tokens, divergence=divergence)


def judged(
    *pairs: Compared,
    control: tuple[Compared, ...] = (pair("same"),) * 10,
    noise: tuple[float, ...] = (),
    detect: float = 0.02,
) -> Greedy:
    return judge_greedy(
        {"alone": numbered(pairs)}, ALONE, control_of({"alone": numbered(control)}, noise), detect=detect
    )


def numbered(pairs: Sequence[Compared]) -> list[Compared]:
    """Each of a prompt of its own."""
    return [
        replace(
            each,
            case=f"p{number}",
            divergence=None if each.divergence is None else replace(each.divergence, case=f"p{number}"),
        )
        for number, each in enumerate(pairs)
    ]


SAME = pair("same")


def unseen(margin: float, *, unseen_margin: float) -> Compared:
    found = pair(margin, at_least=True)
    assert found.divergence is not None
    return replace(found, divergence=replace(found.divergence, unseen_margin=unseen_margin))


def test_a_tie_that_shows_only_a_token_later_is_a_tie() -> None:
    found = judged(unseen(7.0, unseen_margin=0.05), *[SAME] * 20)
    assert (found.result, found.ties, found.faults) == (Result.PASS, 1, 0)


def test_a_token_that_was_no_tie_earlier_either_is_a_fault() -> None:
    found = judged(unseen(7.0, unseen_margin=0.8), *[SAME] * 20)
    assert (found.result, found.faults) == (Result.FAIL, 1)


def test_what_two_runs_of_the_baseline_do_to_each_other_is_no_fault_of_the_arm() -> None:
    sure = pair(7.0, at_least=True)
    found = judged(sure, *[SAME] * 20, control=(sure, sure, *[SAME] * 10))
    assert found.result is Result.INCONCLUSIVE
    assert "two of its own runs" in found.message


def test_far_more_faults_than_two_runs_of_the_baseline_have_are_the_arms() -> None:
    sure = pair(7.0, at_least=True)
    found = judged(*[sure] * 15, *[SAME] * 5, control=(sure, *[SAME] * 60))
    assert found.result is Result.FAIL


def test_a_control_that_parted_unseen_does_not_widen_what_a_tie_is() -> None:
    control = control_of({"alone": [unseen(5.0, unseen_margin=0.02)]}, ())
    assert control.margins == (0.02,)
    assert control.tie_nats == 0.1
    assert control.faults == 0


def test_answers_that_all_agree_pass_with_the_bound_that_their_number_allows() -> None:
    found = judged(*[SAME] * 20)
    assert found.result is Result.PASS
    assert "1000 tokens: all the same" in found.message
    assert "0.30%" in found.message


def test_ties_are_no_fault_however_often_they_fall_the_other_way() -> None:
    found = judged(*[pair(0.05)] * 15, *[SAME] * 5)
    assert found.result is Result.PASS
    assert found.ties == 15
    assert "more often than two baseline runs" in found.message


def test_one_token_that_the_baseline_would_never_say_is_a_fault() -> None:
    found = judged(*[SAME] * 19, pair(6.0))
    assert found.result is Result.FAIL
    assert found.faults == 1
    assert "6.0 nats" in found.message


def test_text_cut_off_is_a_fault_and_called_that() -> None:
    assert "ended early" in judged(*[SAME] * 19, pair(math.inf)).message


def test_the_baselines_own_noise_widens_what_counts_as_a_tie() -> None:
    noisy = tuple([0.1] * 990 + [0.9] * 10)
    assert judged(*[SAME] * 19, pair(1.3)).result is Result.FAIL
    assert judged(*[SAME] * 19, pair(0.8), noise=noisy).result is Result.PASS
    assert judged(*[SAME] * 19, pair(3.0), noise=noisy).result is Result.FAIL


@pytest.mark.parametrize("unclear", [pair(0.5), pair(0.05, at_least=True), pair(None)])
def test_neither_tie_nor_fault_is_inconclusive(unclear: Compared) -> None:
    assert judged(*[SAME] * 19, unclear).result is Result.INCONCLUSIVE


NOISY_BASELINE = (pair(0.3), *[pair(0.05)] * 4, *[SAME] * 15)


def test_a_difference_beyond_noise_passes_where_two_baseline_runs_differ_as_far_as_often() -> None:
    found = judged(pair(0.5), *[pair(0.05)] * 3, *[SAME] * 16, control=NOISY_BASELINE)
    assert (found.result, found.wide, found.ties) == (Result.PASS, 1, 3)
    assert "1 by up to 0.50 nats, no more often than two baseline runs" in found.message


def test_differences_beyond_noise_that_come_more_often_than_the_baselines_own_are_inconclusive() -> None:
    found = judged(*[pair(0.5)] * 12, *[SAME] * 8, control=NOISY_BASELINE)
    assert found.result is Result.INCONCLUSIVE
    assert "12 differences" in found.message


def test_ties_that_the_control_made_wide_count_against_the_arm_as_well() -> None:
    """The control's one difference of 0.9 nats makes ties of an arm that has fifteen of 0.8, but not the rest."""
    control = (pair(0.9), *[SAME] * 19)
    found = judged(*[pair(0.8)] * 15, pair(0.95), *[SAME] * 4, control=control)
    assert found.result is Result.INCONCLUSIVE


@pytest.mark.parametrize("control", [(), (pair(0.3),), (pair(0.3), *[SAME] * 2)])
def test_too_little_of_the_baseline_against_itself_explains_nothing(control: tuple[Compared, ...]) -> None:
    assert judged(pair(0.5), *[SAME] * 19, control=control).result is Result.INCONCLUSIVE


def test_a_token_that_is_not_listed_stays_unclear_whatever_the_control_does() -> None:
    unlisted = pair(0.4, at_least=True)
    assert judged(unlisted, *[SAME] * 19, control=NOISY_BASELINE).result is Result.INCONCLUSIVE


def test_differences_beyond_noise_count_as_possible_faults_in_the_share_that_is_excluded() -> None:
    noisy = (*[pair(0.3)] * 6, *[SAME] * 14)
    assert judged(*[pair(0.5)] * 4, *[SAME] * 16, control=noisy, detect=0.02).result is Result.PASS
    strict = judged(*[pair(0.5)] * 4, *[SAME] * 16, control=noisy, detect=0.005)
    assert strict.result is Result.INCONCLUSIVE
    assert "4 by more than noise" in strict.message


def test_without_margins_the_rate_against_the_control_decides() -> None:
    assert judged(*[pair(None)] * 12, *[SAME] * 8, control=(SAME,) * 20).result is Result.FAIL
    natural = (*[pair(None)] * 6, *[SAME] * 14)
    assert judged(*natural, control=natural, detect=0.05).result is Result.PASS


def test_too_few_tokens_are_inconclusive_and_say_how_many_it_takes() -> None:
    found = judged(SAME)
    assert found.result is Result.INCONCLUSIVE
    assert "150 needed" in found.message


def test_requests_that_fail_under_speculation_alone_are_not_called_a_changed_output() -> None:
    found = judged(*[SAME] * 20, pair("refused"))
    assert found.result is Result.INCONCLUSIVE
    assert found.refused == 1


def test_nothing_compared_is_inconclusive() -> None:
    assert judged().result is Result.INCONCLUSIVE


def test_every_difference_is_counted_once_and_the_worst_are_shown_first() -> None:
    tie, wide, fault, unknown, refused = (pair(m) for m in (0.05, 0.5, 6.0, None, "refused"))
    found = judged(tie, refused, unknown, wide, fault, tie, *[SAME] * 20)
    counted = (found.faults, found.wide, found.unknown, found.refused, found.ties)
    assert counted == (1, 1, 1, 1, 2)
    assert len(found.parted) == 6
    # The unknown one and the refused one.
    assert found.without_margin == found.parted[2:4]


def test_what_stays_unclear_is_added_up_unless_the_baseline_differs_from_itself_as_well() -> None:
    unclear = (pair(0.5), pair(None), *[SAME] * 28)
    assert "2 differences in" in judged(*unclear).message
    assert "1 differences in" in judged(*unclear, control=(pair(None), *[SAME] * 28)).message


def test_one_tie_reads_as_one_and_is_not_called_more_often_than_the_baselines_own() -> None:
    one, two = judged(pair(0.05), *[SAME] * 20).message, judged(*[pair(0.05)] * 2, *[SAME] * 20).message
    assert "1 differs at a near-tie" in one
    assert "2 differ at a near-tie" in two
    assert "more often" not in one + two


def test_differences_without_margins_pass_only_under_the_share_that_was_asked_for() -> None:
    natural = (pair(None), *[SAME] * 19)
    assert judged(*natural, control=natural, detect=0.005).result is Result.PASS
    strict = judged(*natural, control=natural, detect=0.004)
    assert strict.result is Result.INCONCLUSIVE
    assert "1 differences without log-probabilities" in strict.message


def test_no_more_than_all_tokens_may_be_wrong() -> None:
    """Texts of a server that says something else each time part with their first words."""
    parted = [pair(None, tokens=1.0)] * 200
    seen = judged(*parted, control=tuple(parted))

    assert seen.result is Result.INCONCLUSIVE
    assert "wrong tokens below 100.0%" in seen.message


# Batch-invariant kernels

EQUAL = judged(*[SAME] * 20)
NEVER_PARTED = control_of({"alone": numbered([SAME] * 10)}, ())
UNSURE = judged(*[pair(0.5)] * 3, *[SAME] * 17)


def test_what_arithmetic_may_have_done_passes_where_kernels_without_it_give_the_same_text() -> None:
    assert UNSURE.is_open_by_arithmetic
    found = settled_by_equality(UNSURE, EQUAL, NEVER_PARTED.together)
    assert (found.result, found.wide) == (Result.PASS, 3)
    assert "1000 tokens with batch-invariant kernels are all the same" in found.message


@pytest.mark.parametrize("margin", [0.01, 0.5, 5.0, None])
def test_one_difference_with_batch_invariant_kernels_is_a_changed_output(margin: float | None) -> None:
    found = settled_by_equality(UNSURE, judged(pair(margin), *[SAME] * 19), NEVER_PARTED.together)
    assert found.result is Result.FAIL
    assert "1 differences in 1000 tokens with batch-invariant kernels" in found.message


def test_kernels_under_which_the_baseline_differs_from_itself_settle_nothing() -> None:
    noisy = control_of({"alone": numbered(NOISY_BASELINE)}, ())
    for invariant in (EQUAL, judged(pair(5.0), *[SAME] * 19)):
        found = settled_by_equality(UNSURE, invariant, noisy.together)
        assert found.result is Result.INCONCLUSIVE
        assert "two baseline runs differ 5 times there too" in found.message


def test_too_few_equal_tokens_settle_nothing() -> None:
    found = settled_by_equality(UNSURE, judged(SAME), NEVER_PARTED.together)
    assert found.result is Result.INCONCLUSIVE
    assert "too little was compared" in found.message


@pytest.mark.parametrize("other", [judged(SAME), judged(*[SAME] * 20, pair("refused")), EQUAL])
def test_want_of_answers_is_nothing_that_other_kernels_settle(other: Greedy) -> None:
    assert not other.is_open_by_arithmetic
