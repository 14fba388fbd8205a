"""The report: one self-contained HTML page from the JSON document, and from nothing else.

What the page shows is in the JSON; text is escaped by the template engine and made visible where it could act on
its reader (control and bidirectional characters).
"""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from speclift.core.quantities import number, printable, ratio_words, seconds, share
from speclift.views import charts
from speclift.views.tuning_charts import pareto
from speclift.views.tuning_table import cost_line, dropped_lines, error_lines, schedule_line, speedup_tables

TITLES = {
    "ship": "Ship",
    "ship-on-conditions": "Ship on conditions",
    "do-not-ship": "Do not ship",
    "inconclusive": "Inconclusive",
    "output-changed": "Output changed",
}


def page(document: dict[str, Any]) -> str:
    environment = Environment(
        loader=PackageLoader("speclift.views"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters.update(
        seconds=seconds, share=share, number=number, printable=_shown, ratio=ratio_words
    )
    shown_arm = _shown_arm(document)
    return environment.get_template("page.html").render(
        d=document,
        title=TITLES[document["verdict"]],
        arm=shown_arm,
        tuning=_tuning(document.get("tuning")),
        pictures={name: Markup(svg) for name, svg in _pictures(document, shown_arm).items()},
        histograms=[
            (entry, Markup(charts.histogram(entry["counts"], entry["label"])))
            for entry in document["acceptance_histograms"]
            if entry["arm"] == shown_arm
        ],
    )


def _tuning(tuning: dict[str, Any] | None) -> dict[str, Any] | None:
    """What the page says of the search, in the words of the terminal."""
    if tuning is None:
        return None
    schedule = schedule_line(tuning)
    return {
        "cost": cost_line(tuning),
        "tables": speedup_tables(tuning),
        "notes": [
            ("Dropped", dropped_lines(tuning)),
            ("Predicted and measured", error_lines(tuning)),
            ("Schedule", [schedule] if schedule is not None else []),
        ],
    }


def _pictures(document: dict[str, Any], arm: str | None) -> dict[str, str]:
    own_ceiling = [row for row in document["ceiling"] if row["arm"] == arm]
    return {
        "forest": charts.forest(document),
        "load": charts.speedup_over_load(document),
        "survival": charts.survival(document),
        "ttft": charts.percentiles(document, "ttft_s", arm) if arm is not None else "",
        "tpot": charts.percentiles(document, "tpot_s", arm) if arm is not None else "",
        "ceiling": charts.ceiling(own_ceiling),
        "pareto": pareto(document.get("tuning")),
    }


def _shown_arm(document: dict[str, Any]) -> str | None:
    """The winner, or where none won the arm the headline speedup is of."""
    for source in (document["winner"], document["speedup"]):
        if source is not None:
            name: str = source["arm"]
            return name
    return None


def _shown(text: object) -> str:
    return "\n".join(printable(line, limit=4000) for line in str(text).splitlines())
