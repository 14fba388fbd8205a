"""The report: one self-contained HTML page from the JSON document, and from nothing else.

What the page shows is in the JSON; text is escaped by the template engine and made visible where it could act on
its reader (control and bidirectional characters).
"""

from __future__ import annotations

from functools import cache
from typing import TypedDict

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from speclift.core.quantities import number, printable, ratio_words, seconds, share
from speclift.core.results import Decision
from speclift.search.tuning_document import ConfirmedTuningDocument, confirmed_errors_of, tuning_of
from speclift.views import charts
from speclift.views.documents import VerdictDocument
from speclift.views.time_words import command_time
from speclift.views.tuning_charts import pareto
from speclift.views.tuning_table import (
    SpeedupTable,
    cost_line,
    dropped_lines,
    error_lines,
    schedule_line,
    speedup_tables,
)

TITLES = {
    Decision.SHIP: "Ship",
    Decision.SHIP_ON_CONDITIONS: "Ship on conditions",
    Decision.DO_NOT_SHIP: "Do not ship",
    Decision.INCONCLUSIVE: "Inconclusive",
    Decision.OUTPUT_CHANGED: "Output changed",
}


class _TuningWords(TypedDict):
    """What templates/tuning.html takes."""

    cost: str
    tables: tuple[SpeedupTable, ...]
    notes: list[tuple[str, list[str]]]


@cache
def _template() -> Template:
    """Reading it takes as long as all the rest of a report."""
    environment = Environment(
        loader=PackageLoader("speclift.views"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters.update(
        seconds=seconds,
        share=share,
        number=number,
        printable=_shown,
        ratio=ratio_words,
        command_time=command_time,
    )
    return environment.get_template("page.html")


def page(document: VerdictDocument) -> str:
    shown_arm = _shown_arm(document)
    return _template().render(
        d=document,
        title=TITLES[document["verdict"]],
        arm=shown_arm,
        tuning=_tuning(document["tuning"]) if document["tuning"] is not None else None,
        pictures={name: Markup(svg) for name, svg in _pictures(document, shown_arm).items()},
        histograms=[
            (entry, Markup(charts.histogram(entry["counts"], entry["label"])))
            for entry in document["acceptance_histograms"]
            if entry["arm"] == shown_arm
        ],
    )


def _tuning(document: ConfirmedTuningDocument) -> _TuningWords:
    """What the page says of the search, in the words of the terminal."""
    tuning, errors = tuning_of(document), confirmed_errors_of(document)
    schedule = schedule_line(tuning)
    return {
        "cost": cost_line(tuning),
        "tables": speedup_tables(tuning),
        "notes": [
            ("Dropped", dropped_lines(tuning)),
            ("Predicted and measured", error_lines(tuning, errors)),
            ("Schedule", [schedule] if schedule is not None else []),
        ],
    }


def _pictures(document: VerdictDocument, arm: str | None) -> dict[str, str]:
    own_ceiling = [row for row in document["ceiling"] if row["arm"] == arm]
    return {
        "forest": charts.forest(document),
        "load": charts.speedup_over_load(document),
        "survival": charts.survival(document),
        "ttft": charts.percentiles(document, "ttft_s", arm) if arm is not None else "",
        "tpot": charts.percentiles(document, "tpot_s", arm) if arm is not None else "",
        "ceiling": charts.ceiling(own_ceiling),
        "pareto": pareto(tuning_of(document["tuning"])) if document["tuning"] is not None else "",
    }


def _shown_arm(document: VerdictDocument) -> str | None:
    """The winner, or where none won the arm the headline speedup is of."""
    if document["winner"] is not None:
        return document["winner"]["arm"]
    return document["speedup"]["arm"] if document["speedup"] is not None else None


def _shown(text: object) -> str:
    return "\n".join(printable(line, limit=4000) for line in str(text).splitlines())
