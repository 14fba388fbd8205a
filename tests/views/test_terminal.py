"""The terminal view of results full of hostile text, rendered as a terminal would get it."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console, Group

import simulated
from answers import STATES, judged
from samples import HOSTILE
from speclift.core.arm import Arm
from speclift.core.results import (
    ALL_TRAFFIC,
    Acceptance,
    Cell,
    Comparison,
    Completeness,
    Conditions,
    Estimate,
    Evidence,
    Finding,
    Level,
    Part,
    Percentiles,
)
from speclift.core.speculation import NGram
from speclift.core.traffic import Concurrency
from speclift.verdict.document import verdict_document
from speclift.views.terminal import cells_table, findings_view, metrics_line, result_table

# What rich itself writes for colour and weight.
STYLING = re.compile(r"\x1b\[[0-9;]*m")


def estimate(value: float = 1.5, low: float = 1.4, high: float = 1.6) -> Estimate:
    return Estimate(value=value, low=low, high=high, n=12, method="t")


def comparison(arm: str, part: Part, label: str) -> Comparison:
    return Comparison(
        arm=arm,
        metric="tpot",
        part=part,
        label=label,
        speedup=estimate(),
        simultaneous=estimate(low=1.3, high=1.7),
        prompts=12,
        launches=3,
    )


def cell(arm: str, **changes: Any) -> Cell:
    times = Percentiles(p50=0.01, p95=0.02, p99=None)
    values: dict[str, Any] = {
        "arm": arm,
        "load": Concurrency(streams=1),
        "segment": "all",
        "temperature": None,
        "requests": 12,
        "failed": 1,
        "ttft_s": times,
        "tpot_s": times,
        "e2e_s": times,
        "throughput_tok_s": 99.5,
        "acceptance_rate": Acceptance(p10=0.1, p50=0.5, p90=0.9, mean=0.55, requests=12),
        "accepted_length": estimate(2.5, 2.0, 3.0).interval,
        "per_position": (0.8, 0.5),
        "output_tokens_mean": 40.0,
    }
    return Cell(**{**values, **changes})


def view(text: str) -> Any:
    """The table and the findings of results with `text` wherever text from outside can stand."""
    arm = Arm(name=text, speculation=NGram(k=4))
    whole = Evidence(
        arm=arm,
        conditions=ALL_TRAFFIC,
        overall=comparison(text, Part.ALL, "all"),
        by_metric=(comparison(text, Part.ALL, "all"),),
        parts=(comparison(text, Part.SEGMENT, text), comparison(text, Part.TEMPERATURE, "0.7")),
        tails=(),
        cells=(cell(text),),
        baseline_cells=(cell("baseline"),),
        segment_cells=(),
        traffic_share=1.0,
        prompts=36,
        completeness=Completeness(asked=108, used=108, metric_asked="tpot", metric="tpot"),
    )
    cells = (cell("baseline"), cell(text, temperature=0.7))
    finding = Finding(check="a-check", level=Level.WARN, message=text, next_step=text, arm=text)
    document = verdict_document(judged(whole, cells=cells))
    return Group(result_table(document), cells_table(cells), findings_view((finding,)))


def rendered(renderable: Any, *, colours: bool = False, width: int = 400) -> str:
    console = Console(
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor" if colours else None,
        width=width,
        legacy_windows=False,
    )
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


class TestMetricsLine:
    def line(self, **others: float) -> str:
        beside = [
            simulated.comparison(value - 0.1, value, value + 0.1, metric=name)
            for name, value in others.items()
        ]
        whole = simulated.evidence(by_metric=(simulated.comparison(1.4, 1.5, 1.6), *beside))
        return metrics_line(verdict_document(judged(whole))).plain

    def test_names_every_metric_but_the_one_of_the_table(self) -> None:
        assert self.line(tpot=1.7, ttft=0.9, e2e_raw=1.2, throughput=1.4) == (
            "arm: TPOT 1.70x [1.60, 1.80], TTFT 0.90x [0.80, 1.00], "
            "E2E at its own lengths 1.20x [1.10, 1.30], throughput 1.40x [1.30, 1.50]"
        )

    def test_says_where_it_is_not_all_traffic(self) -> None:
        found = (simulated.comparison(1.6, 1.7, 1.8, metric="tpot"),)
        part = simulated.evidence(conditions=Conditions(max_concurrency=4), by_metric=found)
        shipped = replace(STATES["conditions, segments"].verdict, evidence=part)
        document = verdict_document(replace(STATES["conditions, segments"], verdict=shipped))
        assert metrics_line(document).plain == "arm within the conditions: TPOT 1.70x [1.60, 1.80]"

    def test_leaves_out_lengths_that_make_no_difference(self) -> None:
        assert self.line(e2e_raw=1.5) == self.line() == ""


class TestHostileText:
    def test_no_control_character_reaches_the_terminal(self) -> None:
        shown = rendered(view(HOSTILE))

        assert [character for character in shown if character < " " or "\x7f" <= character <= "\x9f"] == [
            "\n"
        ] * shown.count("\n")

    def test_in_colour_only_the_views_own_styling_is_left(self) -> None:
        shown = rendered(view(HOSTILE), colours=True)

        assert STYLING.search(shown)
        assert "\x1b" not in STYLING.sub("", shown)
        assert "\x1b[31mred" not in shown

    @pytest.mark.parametrize("character", ["\u202e", "\u2066", "\u200f", "\u061c", "\u2028", "\ud800"])
    def test_nothing_reorders_or_breaks_a_line(self, character: str) -> None:
        assert character not in rendered(view(HOSTILE))

    def test_it_is_shown_as_escapes_and_not_taken_for_markup(self) -> None:
        shown = rendered(view(HOSTILE))

        assert "\\x1b[31mred" in shown
        assert "[bold]markup[/bold]" in shown
        assert "\\u202eevil" in shown

    @pytest.mark.parametrize("text", ["[/]", "[/bold]", "[link=http://x]y", "\\[", "x" * 5000, "", "\n\n"])
    def test_any_text_can_be_rendered_on_a_narrow_terminal(self, text: str) -> None:
        assert rendered(view(text), colours=True, width=40)


class TestTheTable:
    def test_the_figures_are_there(self) -> None:
        shown = rendered(view("ngram-k4"))

        assert "1.50x [1.30, 1.70]" in shown  # all traffic: simultaneous over the arms
        assert "1.50x [1.40, 1.60]" in shown  # a part: at 95 %
        assert "11/12" in shown

    @pytest.mark.parametrize(("width", "drawn"), [(66, 18), (80, 32), (120, 34)])
    def test_the_drawing_takes_the_width_that_the_words_leave(self, width: int, drawn: int) -> None:
        lines = rendered(view("ngram-k4"), width=width).splitlines()
        row = next(line for line in lines if "all traffic" in line)

        assert "ngram-k4" in row
        assert "…" not in row
        assert len(row.partition("1.70]   ")[2].rstrip()) <= drawn
        assert all(len(line) <= width for line in lines)

    def test_where_nothing_can_be_compared_the_cells_are_shown(self) -> None:
        unknown = cell(
            "baseline",
            ttft_s=None,
            tpot_s=None,
            e2e_s=None,
            throughput_tok_s=None,
            acceptance_rate=None,
            accepted_length=None,
        )

        shown = rendered(result_table(verdict_document(judged(cells=(unknown,)))))
        assert "Measured cells" in shown
        assert "–" in shown
