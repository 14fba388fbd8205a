"""Where n-grams stood before, found by hashes that may collide."""

from __future__ import annotations

import numpy as np
import pytest

from speclift.replayer import counts as matching
from speclift.replayer.counts import LoggedAnswer, batch_of


def test_colliding_hashes_are_noticed_and_hashed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    real = matching._hashes

    def colliding_first(batch: object, places: object, n: int, attempt: int) -> object:
        tried.append(attempt)
        hashes = real(batch, places, n, attempt)  # type: ignore[arg-type]
        return np.zeros_like(hashes) if attempt == 1 else hashes

    batch = batch_of(
        [LoggedAnswer(prompt=np.array([1, 2, 3, 1, 2]), response=np.array([3, 1, 2]), segment="s")]
    )
    expected = matching.matches(batch, 2)
    monkeypatch.setattr(matching, "_hashes", colliding_first)
    found = matching.matches(batch, 2)

    assert tried == [1, 2]
    assert found.first.tolist() == expected.first.tolist()
    assert found.previous.tolist() == expected.previous.tolist()
