"""A search on a terminal and on a page: what was measured is told from what was predicted, at any width."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from samples import HOSTILE
from speclift.core.document import plain
from speclift.core.errors import StudyError
from speclift.search.space import Elimination
from speclift.search.tuning import SearchedCell, Tuning, kept_tuning
from speclift.views.tuning_figures import (
    speedup_tables,
)
from speclift.views.tuning_terminal import search_view, stopped_view
from tuning_samples import BEST, SCHEDULE, TUNING


def drafted_by(name: str) -> tuple[SearchedCell, ...]:
    return tuple(replace(each, drafter=each.drafter and name) for each in TUNING.cells)


def printed(shown: Tuning, *, width: int = 80) -> str:
    screen = io.StringIO()
    console = Console(file=screen, width=width, no_color=True, highlight=False)
    console.print(stopped_view(shown))
    console.print(search_view(shown, best=BEST))
    return screen.getvalue()


def test_what_a_study_kept_of_it_reads_back_the_same() -> None:
    for shown in (TUNING, replace(TUNING, schedule=SCHEDULE, grid_s=None)):
        kept = json.loads(json.dumps(plain(shown)))
        assert kept_tuning(kept) == shown
        del kept["jobs"][0]["purpose"]
        with pytest.raises(StudyError, match=r"missing required field `purpose` - at `\$.jobs\[0\]`"):
            kept_tuning(kept)


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_wider_than_the_terminal_and_nothing_is_cut(width: int) -> None:
    text = printed(TUNING, width=width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text


def test_a_predicted_cell_has_a_tilde_and_a_measured_one_has_none() -> None:
    first, _ = speedup_tables(TUNING)
    by_drafter = dict(first.rows)
    assert [found.text for found in by_drafter["ngram-n4"] if found is not None] == [
        "1.29",
        "~1.31",
        "~1.33",
        "1.36",
    ]
    assert [found is not None and found.is_best for found in by_drafter["ngram-n4"]] == [False] * 3 + [True]


def test_hostile_names_neither_break_the_view_nor_reach_the_terminal() -> None:
    failed = Elimination(candidate=HOSTILE, stage="failed", reason=HOSTILE)
    shown = replace(TUNING, winner=HOSTILE, cells=drafted_by(HOSTILE), eliminated=(failed,))
    assert not {"\x1b", "\x9b", "\u202e", "\0"} & set(printed(shown))
