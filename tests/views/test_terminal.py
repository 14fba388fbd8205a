"""The terminal view of results full of hostile text, rendered as a terminal would get it."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console, Group

from answers import judged
from samples import HOSTILE
from speclift.core.arm import Arm
from speclift.core.results import (
    ALL_TRAFFIC,
    Acceptance,
    Cell,
    Comparison,
    Completeness,
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
from speclift.views.terminal import cells_table, findings_view, result_table


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


class TestHostileText:
    def test_no_control_character_reaches_the_terminal(self) -> None:
        shown = rendered(view(HOSTILE))

        assert [character for character in shown if character < " " or "\x7f" <= character <= "\x9f"] == [
            "\n"
        ] * shown.count("\n")

    def test_it_is_shown_as_escapes_and_not_taken_for_markup(self) -> None:
        shown = rendered(view(HOSTILE))

        assert "\\x1b[31mred" in shown
        assert "[bold]markup[/bold]" in shown
        assert "\\u202eevil" in shown

    @pytest.mark.parametrize("text", ["[/]", "[/bold]", "[link=http://x]y", "\\[", "x" * 5000, "", "\n\n"])
    def test_any_text_can_be_rendered_on_a_narrow_terminal(self, text: str) -> None:
        assert rendered(view(text), colours=True, width=40)
