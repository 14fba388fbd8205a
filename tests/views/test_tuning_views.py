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
from speclift.views.charts import Label, placed_labels
from speclift.views.tuning_figures import (
    cost_line,
    dropped_lines,
    error_lines,
    pareto,
    schedule_line,
    speedup_tables,
)
from speclift.views.tuning_terminal import TextPoint, search_view, stopped_view, text_plot
from tuning_samples import BEST, ERRORS, KS, SCHEDULE, TUNING, cell


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


def test_each_load_has_its_table_and_unknown_cells_stay_empty() -> None:
    shown = replace(TUNING, cells=tuple(each for each in TUNING.cells if each.arm != "ngram-n8-k3"))
    first, second = speedup_tables(shown)
    assert (first.load, second.load, first.ks) == ("c=1", "c=8", KS)
    assert dict(first.rows)["ngram-n8"][1] is None
    assert "–" in printed(shown)


def test_a_second_server_has_a_row_of_its_own_and_what_it_does_without_speculation() -> None:
    quantised = [
        replace(cell(None, 0, 1, 1.1, measured=True), arm="baseline-fp8", quantisation="fp8"),
        replace(cell("ngram-n4", 3, 1, 1.5, measured=True), quantisation="fp8"),
    ]
    (table, _) = speedup_tables(replace(TUNING, cells=(*TUNING.cells, *quantised)))
    assert table.ks == (0, *KS)
    row = dict(table.rows)["ngram-n4 fp8"]
    assert [found.text if found is not None else None for found in row] == ["1.10", None, "1.50", None, None]


def test_the_picture_marks_baseline_winner_measured_and_predicted() -> None:
    text = printed(TUNING)
    picture = text[text.index("tokens/s") : text.index("ms per token")]
    for mark in ("o", "@", "A", "a", "B", "b"):
        assert mark in picture.replace("tokens/s, all streams", "")
    assert "c=8" in picture


def test_words_say_what_was_dropped_what_it_cost_and_how_far_predictions_were_off() -> None:
    never, slow = dropped_lines(TUNING)
    assert never.startswith("1 never launched: draft-k3")
    assert "does not fit" in never
    assert slow.startswith("1 predicted to be too slow: ngram-n8-k1")
    assert "1 launches (1 baseline) in 1 min 05 s" in cost_line(TUNING)
    assert "9 arms x 2 loads x 3 repeats would take about 10 min" in cost_line(TUNING)
    before, confirmed = error_lines(TUNING, ERRORS)
    assert "error 2.0% in the median" in before
    assert "search c=1 1.36x, on held-out prompts 1.32x per token (off by 3.0%)" in confirmed


def test_a_schedule_says_its_ranges_and_whether_the_engine_can_run_it() -> None:
    line = schedule_line(replace(TUNING, schedule=SCHEDULE))
    assert line is not None
    assert "k=7 for 1-4, no drafts for 5-64 (+3.0% over a-k5 predicted" in line
    assert "cannot switch" in line
    assert schedule_line(TUNING) is None


def test_the_fastest_confirmed_arm_is_named_with_its_command() -> None:
    text = printed(TUNING)
    assert "ngram-n4-k8 1.32x [1.20, 1.45] (95 % interval of this arm alone); run it with" in text
    assert "llama-server --spec-type ngram-simple" in text


def test_the_chart_draws_measured_and_predicted_apart() -> None:
    plot = pareto(TUNING)
    assert plot is not None
    kinds = [dot.kind.split()[0] for series in plot.series for dot in series.dots]
    assert (kinds.count("full"), kinds.count("hollow")) == (10, 8)
    assert [series.name for series in plot.series] == ["baseline", "ngram-n4", "ngram-n8"]
    assert pareto(replace(TUNING, cells=())) is None


def test_each_load_is_labelled_once_and_no_label_lies_on_a_dot() -> None:
    plot = pareto(TUNING)
    assert plot is not None
    assert [label.text for label in plot.labels] == ["c=1", "c=8"]


def test_labels_of_points_that_lie_together_are_left_out_rather_than_drawn_over_each_other() -> None:
    together = [Label(x=50, y=50, text=f"c={streams}") for streams in range(20)]
    placed = placed_labels(together, [])
    assert 2 <= len(placed) < len(together)
    assert len({(label.anchor, label.y) for label in placed}) == len(placed)
    assert placed_labels([Label(x=50, y=50, text="x" * 100)], []) == ()


def test_hostile_names_neither_break_the_view_nor_reach_the_terminal() -> None:
    failed = Elimination(candidate=HOSTILE, stage="failed", reason=HOSTILE)
    shown = replace(TUNING, winner=HOSTILE, cells=drafted_by(HOSTILE), eliminated=(failed,))
    assert not {"\x1b", "\x9b", "\u202e", "\0"} & set(printed(shown))


@pytest.mark.parametrize("count", [1, 2, 40])
def test_a_plot_keeps_its_size_whatever_it_shows(count: int) -> None:
    points = [TextPoint(x=1.5**n, y=2.0**n, mark="x", note=f"p{n}") for n in range(count)]
    lines = text_plot(points, width=60, height=10, x_title="across", y_title="up")
    assert len(lines) == 10 + 4
    assert max(len(line) for line in lines) <= 60
    assert text_plot([], width=60, height=10, x_title="across", y_title="up") == []
