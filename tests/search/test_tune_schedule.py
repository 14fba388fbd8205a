"""The fewest segments of k over batch sizes: against brute force, and what is refused."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speclift.core.errors import UsageError
from speclift.search.conclusion import TOLERANCE, compress


def brute_force(rates: list[list[float]], tolerance: float) -> tuple[int, float]:
    """Fewest switches over all assignments, then the smallest summed loss."""
    found: tuple[int, float] | None = None
    for columns in product(range(len(rates[0])), repeat=len(rates)):
        losses = [1 - row[column] / max(row) for row, column in zip(rates, columns, strict=True)]
        if max(losses) > tolerance:
            continue
        segments = 1 + sum(left != right for left, right in pairwise(columns))
        reached = (segments, round(sum(losses), 9))
        found = reached if found is None else min(found, reached)
    assert found is not None
    return found


tables = st.integers(1, 3).flatmap(
    lambda columns: st.lists(
        st.lists(st.sampled_from([0.9, 0.98, 0.985, 0.992, 0.995, 1.0]), min_size=columns, max_size=columns),
        min_size=1,
        max_size=5,
    )
)


@pytest.mark.slow
@settings(max_examples=5 * settings().max_examples)
@given(rates=tables)
def test_as_few_segments_and_as_little_loss_as_brute_force_finds(rates: list[list[float]]) -> None:
    batches = [2**place for place in range(len(rates))]
    schedule = compress(batches, list(range(len(rates[0]))), rates)
    segments, loss = brute_force(rates, TOLERANCE)
    assert len(schedule.segments) == segments
    assert schedule.loss_mean * len(rates) == pytest.approx(loss, abs=1e-7)
    assert schedule.loss_max <= TOLERANCE


@settings(max_examples=2 * settings().max_examples)
@given(rates=tables)
def test_segments_cover_every_batch_size_once_from_one_on(rates: list[list[float]]) -> None:
    batches = [3 * 2**place for place in range(len(rates))]
    schedule = compress(batches, list(range(len(rates[0]))), rates)
    triples = schedule.as_triples()
    assert triples[0][0] == 1
    assert triples[-1][1] == batches[-1]
    assert all(right[0] == left[1] + 1 for left, right in pairwise(triples))


def test_one_k_within_the_tolerance_everywhere_beats_two_that_are_each_best() -> None:
    schedule = compress([1, 8, 64], [2, 5], [[0.995, 1.0], [1.0, 1.0], [1.0, 0.98]])
    assert schedule.is_static
    assert schedule.segments[0].k == 2


def test_of_equals_the_smaller_k_is_taken() -> None:
    assert compress([1, 4], [5, 3], [[1.0, 1.0], [1.0, 1.0]]).segments[0].k == 3


def test_k_need_not_fall_with_the_batch() -> None:
    schedule = compress([1, 8, 64], [0, 2], [[1.0, 0.8], [0.8, 1.0], [1.0, 0.8]])
    assert [segment.k for segment in schedule.segments] == [0, 2, 0]


def test_a_switch_lies_between_the_sizes_looked_at_and_both_its_sides_are_thresholds() -> None:
    schedule = compress([1, 16, 64], [0, 4], [[0.5, 1.0], [0.5, 1.0], [1.0, 0.5]])
    assert schedule.as_triples() == [[1, 32, 4], [33, 64, 0]]
    assert schedule.thresholds == (32, 33)
    assert (schedule.k_at(1), schedule.k_at(32), schedule.k_at(33), schedule.k_at(500)) == (4, 4, 0, 0)


def test_weights_decide_where_the_loss_falls() -> None:
    rates = [[1.0, 0.994], [0.994, 1.0]]
    assert compress([1, 2], [1, 2], rates, weights=[9, 1]).segments[0].k == 1
    assert compress([1, 2], [1, 2], rates, weights=[1, 9]).segments[0].k == 2


@pytest.mark.parametrize(
    ("batches", "ks", "rates", "more", "message"),
    [
        ([], [1], [], {}, "rising batch sizes"),
        ([4, 2], [1], [[1.0], [1.0]], {}, "rising batch sizes"),
        ([0, 2], [1], [[1.0], [1.0]], {}, "rising batch sizes"),
        ([1], [1, 1], [[1.0, 1.0]], {}, "different k"),
        ([1], [-1], [[1.0]], {}, "different k"),
        ([1, 2], [1], [[1.0]], {}, "one rate for each"),
        ([1], [1], [[0.0]], {}, "above 0"),
        ([1], [1], [[float("nan")]], {}, "at least 0"),
        ([1], [1], [[1.0]], {"tolerance": 1.0}, "tolerance"),
        ([1], [1], [[1.0]], {"weights": [1.0, 2.0]}, "weights"),
        ([1], [1], [[1.0]], {"weights": [0.0]}, "weights"),
    ],
)
def test_tables_that_make_no_schedule_are_refused(
    batches: list[int], ks: list[int], rates: list[list[float]], more: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        compress(batches, ks, rates, **more)  # type: ignore[arg-type]


def test_a_batch_below_one_has_no_k() -> None:
    with pytest.raises(UsageError, match="at least 1 sequence"):
        compress([1], [1], [[1.0]]).k_at(0)
