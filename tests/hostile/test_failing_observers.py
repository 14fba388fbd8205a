"""An observer is somebody else's code: what it raises comes out, and no study stays locked behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

import speclift
from running import FAST


class Raising(speclift.Observer):
    def __init__(self, at: str) -> None:
        self._at = at

    def say(self, text: str) -> None:
        if self._at == "say":
            raise RuntimeError(text)

    def launching(self, arm: str, round_index: int) -> None:
        if self._at == "launching":
            raise RuntimeError(arm)


def measured(study: Path, observer: speclift.Observer | None = None, *, resume: bool = False) -> int:
    document = speclift.measure(
        observer=observer,
        engine="fake",
        engine_args=FAST,
        methods=("ngram",),
        segments=("chat",),
        requests=2,
        max_tokens=4,
        launches=1,
        study=study,
        resume=resume,
    )
    return len(document["cells"])


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("at", ["say", "launching"])
def test_the_study_can_be_resumed_in_the_same_process(at: str, tmp_path: Path) -> None:
    with pytest.raises((RuntimeError, ExceptionGroup)):
        measured(tmp_path / "s", Raising(at))
    assert measured(tmp_path / "s", resume=True) > 0


@pytest.mark.slow
@pytest.mark.usefixtures("threads")
def test_one_that_fails_while_a_study_is_reopened_leaves_it_free(tmp_path: Path) -> None:
    cells = measured(tmp_path / "s")
    with pytest.raises(RuntimeError, match="resuming"):
        measured(tmp_path / "s", Raising("say"), resume=True)
    assert measured(tmp_path / "s", resume=True) == cells
