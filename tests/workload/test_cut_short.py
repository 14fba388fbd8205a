"""What of a plan was sent in time, in words."""

from __future__ import annotations

from samples import plan, request
from speclift.core.arm import BASELINE
from speclift.core.traffic import Concurrency
from speclift.workload.budget import cut_short
from speclift.workload.experiment import turns

PLAN = plan(
    requests=tuple(request(f"p{number}") for number in range(3)),
    request_count=5,
    loads=(Concurrency(streams=1), Concurrency(streams=4)),
)
OWN = [turn for turn in turns(PLAN, 0) if turn.arm == BASELINE]


def test_a_plan_that_was_sent_whole_has_nothing_to_say() -> None:
    assert list(cut_short(OWN, lambda _turn, _item: True)) == []
    assert list(cut_short([], lambda _turn, _item: False)) == []


def test_each_load_says_what_it_lacks_and_repeats_count() -> None:
    first = Concurrency(streams=1)
    said = list(cut_short(OWN, lambda turn, item: turn.load == first or item.repeat == 1))
    assert said == ["2 of the 5 requests planned at c=4 were sent to each arm in time"]


def test_nothing_sent_is_said_of_every_load() -> None:
    said = list(cut_short(OWN, lambda _turn, _item: False))
    assert [words[:7] for words in said] == ["0 of th", "0 of th"]
