"""What the user sees while a study runs: a live bar on a terminal, a line now and then without one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from speclift.bench.observer import Observer
from speclift.core.quantities import duration, printable, printable_lines
from speclift.core.results import Finding
from speclift.search.problem import SearchJob

PLAIN_EVERY_S = 10.0


class Narrator(Observer):
    """Tells it on stderr."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._last_plain_s = 0.0

    def say(self, text: str) -> None:
        self.console.print(text, style="dim", markup=False, highlight=False)

    @contextmanager
    def live(self) -> Iterator[None]:
        if not self.console.is_terminal:
            yield
            return
        columns = (
            TextColumn("{task.fields[arm]:<18}", style="bold", markup=False),
            BarColumn(bar_width=32),
            TextColumn("{task.fields[count]}"),
            TextColumn("{task.fields[left]}"),
        )
        with Progress(*columns, console=self.console, transient=True) as bar:
            self._bar = bar
            self._task = bar.add_task("study", total=None, arm="launching", count="", left="")
            try:
                yield
            finally:
                self._bar = None

    def launching(self, arm: str, round_index: int) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, arm=f"launch {round_index + 1}: {arm}")
        else:
            self.say(f"launch {round_index + 1}: {arm}")

    def turn_done(self, arm: str, *, done: int, total: int, left_s: float) -> None:
        left = f"about {duration(left_s)} left"
        if self._bar is not None and self._task is not None:
            count = f"{done}/{total} turns"
            self._bar.update(self._task, completed=done, total=total, arm=arm, count=count, left=left)
        elif time.monotonic() - self._last_plain_s >= PLAIN_EVERY_S:
            self._last_plain_s = time.monotonic()
            self.say(f"{done}/{total} turns, {left}")

    def soaking(
        self,
        arm: str,
        *,
        launch: int,
        stage: str,
        streams: int,
        requests: int,
        faults: int,
        done: float,
        left_s: float,
    ) -> None:
        left = f"about {duration(left_s)} left"
        odd = f", {faults} odd" if faults else ""
        where = f"{printable(arm, limit=24)} {launch}, {stage}, {streams} at once"
        count = f"{requests:,} requests{odd}"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=1000 * done, total=1000, arm=where, count=count, left=left)
        elif time.monotonic() - self._last_plain_s >= PLAIN_EVERY_S:
            self._last_plain_s = time.monotonic()
            self.say(f"{where}: {count}, {left}")

    def searching(self, job: SearchJob, *, done: int, left_s: float | None) -> None:
        loads = ", ".join(load.label for load in job.loads)
        arm = printable(job.candidate, limit=64)
        left = ""
        if left_s is not None:
            # The baseline and a run of every way of drafting are run in any case.
            left = (
                f"at most {duration(left_s)} of search time left"
                if left_s > 0
                else "search time is over, but this launch is needed"
            )
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, arm=arm, count=f"search, launch {done + 1}", left=left)
        self.say(
            f"search {done + 1}: {arm} at {loads}: {printable(job.reason)}" + (f" ({left})" if left else "")
        )

    def noticed(self, finding: Finding) -> None:
        text = printable_lines(finding.message)
        self.console.print(f"! {finding.check}: {text}", style="yellow", markup=False, highlight=False)
