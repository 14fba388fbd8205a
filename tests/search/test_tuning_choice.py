"""Which arm is confirmed beside the winner."""

from __future__ import annotations

import pytest

from speclift.core.arm import Arm
from speclift.core.speculation import Combined, DraftModel, NGram, Speculation
from speclift.search.conclusion import _of_another_kind
from speclift.search.space import Candidate

NGRAM, DRAFT = NGram(k=7, n=4), DraftModel(model="tiny.gguf", k=3)
BOTH = Combined(parts=(NGRAM, DRAFT))


def candidate(name: str, speculation: Speculation) -> Candidate:
    return Candidate(arm=Arm(name=name, speculation=speculation))


@pytest.mark.parametrize(
    ("ranking", "expected"),
    [
        # Not the combination, which would show the winner twice.
        ([("ngram", NGRAM), ("both", BOTH), ("draft", DRAFT)], "draft"),
        ([("both", BOTH), ("draft", DRAFT), ("ngram", NGRAM)], "draft"),
        ([("ngram", NGRAM), ("ngram-2", NGRAM), ("both", BOTH)], "both"),
        ([("ngram", NGRAM), ("ngram-2", NGRAM)], None),
    ],
)
def test_the_best_that_shares_no_method_stands_beside_the_winner(
    ranking: list[tuple[str, Speculation]], expected: str | None
) -> None:
    candidates = [candidate(*each) for each in ranking]
    other = _of_another_kind(candidates[0], candidates)
    assert (other.name if other is not None else None) == expected
