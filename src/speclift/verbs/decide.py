"""decide: search where there is anything to search, measure, check the output, judge."""

from __future__ import annotations

import time
from typing import Any

from speclift.bench.ask import Ask
from speclift.bench.gate_study import gate_reserve_s, keep_gate, quick_limit_s, require_mode
from speclift.bench.opening import open_decision
from speclift.bench.prepare import Say
from speclift.bench.run import Progress, run_study
from speclift.bench.search_study import Opened, Quiet, unheard
from speclift.core.deadline import Deadline
from speclift.core.results import Verdict
from speclift.verbs.judge import judge
from speclift.verdict.judgement import Judgement


def decide(ask: Ask | None = None, **settings: Any) -> Verdict:
    """Measure as asked and return the verdict: `speclift.decide(methods=("ngram",), ks=(8,))`.

    `settings` are the fields of Ask; the study it leaves behind holds the records.
    """
    return decided(ask or Ask(**settings), always=False).verdict


def decided(ask: Ask, *, always: bool) -> Judgement:
    """`always`: search even where only one arm was named."""
    require_mode(ask.verify)
    opened = open_decision(ask, progress=Quiet(), say=unheard, always=always)
    with opened.study as study:
        run_and_verify(opened, ask, progress=Quiet(), say=unheard)
        return judge([study])


def run_and_verify(opened: Opened, ask: Ask, *, progress: Progress, say: Say) -> None:
    """The confirmation, then the lossless gate."""
    deadline, started_s = opened.deadline, time.monotonic()
    own = deadline.keeping(gate_reserve_s(ask.verify, deadline))
    run_study(opened.study, progress=progress, deadline=own, workers=ask.workers)
    if not deadline.is_set and ask.verify == "quick":
        deadline = Deadline.after(quick_limit_s(time.monotonic() - started_s), clock=time.monotonic)
    keep_gate(opened.study, mode=ask.verify, say=say, deadline=deadline)
