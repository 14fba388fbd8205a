"""The report: one self-contained HTML page from the JSON document, and from nothing else.

A section for each question that people ask, in the order in which they ask.
"""

from __future__ import annotations

from speclift.core.results import Decision
from speclift.search.tuning import ConfirmedTuning
from speclift.verdict.document import VerdictDocument
from speclift.views import page_latency, page_sure, page_traffic, page_why
from speclift.views.charts_plot import speedup_over_load, survival
from speclift.views.page_cells import cell_table
from speclift.views.page_document import shown_arm
from speclift.views.page_glossary import GLOSSARY, TermLinks
from speclift.views.page_templates import page_template
from speclift.views.tuning_figures import (
    cost_line,
    dropped_lines,
    error_lines,
    pareto,
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
# The place of each on the page, and its heading.
QUESTIONS = {
    "do": "What should I do?",
    "sure": "How sure is it?",
    "where": "Where does it pay, and where not?",
    "latency": "What does it do to the latency people feel?",
    "why": "Why?",
    "output": "Did the output change?",
    "articles": "What do the articles say, and what was measured here?",
    "configuration": "Which configuration do I copy?",
    "cells": "What was measured in every cell?",
    "rerun": "How do I run it again?",
}


def page(document: VerdictDocument) -> str:
    arm = shown_arm(document)
    steps = page_why.steps(document, arm) if arm is not None else []
    panels, left_out_loads = page_latency.panels(document, arm) if arm is not None else ([], [])
    return page_template("page.html").render(
        d=document,
        title=TITLES[document.verdict],
        questions=QUESTIONS,
        glossary=GLOSSARY,
        term=TermLinks(),
        arm=arm,
        sure=page_sure.sureness(document, arm),
        open_rows=page_sure.open_rows(document.open),
        conditions=page_sure.condition_lines(document.conditions),
        heat=page_traffic.heat_table(document, arm) if arm is not None else None,
        part_forests=page_traffic.part_forests(document, arm),
        load_plot=speedup_over_load(document),
        crossings=page_traffic.crossing_lines(document),
        panels=panels,
        left_out_loads=left_out_loads,
        tails=page_latency.tail_forest(document, arm) if arm is not None else None,
        steps=steps,
        step_forest=page_why.step_forest(steps),
        survival=survival(document),
        histograms=page_why.histograms(document, arm) if arm is not None else [],
        resources=page_why.resources(document),
        by_temperature=page_why.by_temperature(document),
        temperatures=page_why.temperature_rows(document),
        tuning=_tuning(document.tuning) if document.tuning is not None else None,
        table=cell_table(document),
    )


def _tuning(tuning: ConfirmedTuning) -> dict[str, object]:
    """What the page says of the search, in the words of the terminal."""
    schedule = schedule_line(tuning)
    return {
        "cost": cost_line(tuning),
        "picture": pareto(tuning),
        "tables": speedup_tables(tuning),
        "notes": [
            ("What was dropped", dropped_lines(tuning)),
            ("Predicted and measured", error_lines(tuning, tuning.confirmed_errors)),
            ("Schedule", [schedule] if schedule is not None else []),
        ],
    }
