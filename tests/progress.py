"""How many tests are done and how long the rest will take: one line, rewritten on a terminal, now and then elsewhere.

What each test took is kept in pytest's cache. The time left is the time gone, scaled by what the tests still to come
took last time over what those done took; so it allows for tests that run together and for a machine that is busy.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable

import pytest

CACHE_KEY = "speclift/durations"
# Tests that took less than this are not kept; most of those last about so long.
KEPT_S, SHORT_S = 0.05, 0.01
# How often the line is written.
TERMINAL_S, LOG_S = 0.2, 15.0


def left_s(*, gone_s: float, done_s: float, to_come_s: float) -> float | None:
    """None as long as what is done tells nothing."""
    return gone_s * to_come_s / done_s if done_s > 0 else None


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"


class Progress:
    """In the one process that shows results: pytest's own, or that which the workers of xdist report to."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        # pytest may be told to keep nothing.
        self._cache: pytest.Cache | None = getattr(config, "cache", None)
        self._before: dict[str, float] = self._cache.get(CACHE_KEY, {}) if self._cache else {}
        self._to_come: set[str] = set()
        self._took: defaultdict[str, float] = defaultdict(float)
        self._total = self._failed = 0
        self._done_s = self._to_come_s = 0.0
        self._began_s = self._shown_s = time.monotonic()

    def _expect(self, names: Iterable[str]) -> None:
        self._to_come = set(names)
        self._total = len(self._to_come)
        self._to_come_s = sum(map(self._lasts_s, self._to_come))
        self._began_s = time.monotonic()

    def _lasts_s(self, name: str) -> float:
        return self._before.get(name, SHORT_S)

    # What pytest calls

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:  # under xdist the workers collect
            self._expect(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object, ids: list[str]) -> None:
        if not self._total:
            self._expect(ids)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Instead of a letter for each."""
        if report.failed:
            return ("failed" if report.when == "call" else "error"), "", "FAILED"
        if report.passed and report.when == "call":
            return "passed", "", "PASSED"
        return ("skipped", "", "SKIPPED") if report.skipped and not hasattr(report, "wasxfail") else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("@")[0] if report.nodeid not in self._to_come else report.nodeid
        self._took[name] += report.duration
        if report.failed:
            self._failed += 1
            self._write(f"FAILED {name}")
        if report.when == "teardown" and name in self._to_come:
            self._to_come.remove(name)
            self._done_s += self._lasts_s(name)
            self._to_come_s -= self._lasts_s(name)
            self._show()

    def pytest_sessionfinish(self) -> None:
        ended = {name: took for name, took in self._took.items() if name not in self._to_come}
        kept = {name: round(took, 2) for name, took in ended.items() if took >= KEPT_S}
        others = {name: took for name, took in self._before.items() if name not in ended}
        if self._cache:
            self._cache.set(CACHE_KEY, others | kept)
        self._write(self.line())

    # What is shown

    def line(self) -> str:
        gone_s = time.monotonic() - self._began_s
        done = self._total - len(self._to_come)
        left = left_s(gone_s=gone_s, done_s=self._done_s, to_come_s=max(0.0, self._to_come_s))
        rest = "" if left is None or not self._to_come else f", about {clock(left)} left"
        failed = f", {self._failed} failed" if self._failed else ""
        return f"{done}/{self._total} tests{failed}, {clock(gone_s)} gone{rest}"

    def _show(self) -> None:
        every_s = TERMINAL_S if self._terminal.isatty else LOG_S
        if time.monotonic() - self._shown_s < every_s:
            return
        self._shown_s = time.monotonic()
        if self._terminal.isatty:
            self._terminal.rewrite(self.line(), erase=True)
        else:
            self._terminal.write_line(self.line())

    def _write(self, text: str) -> None:
        if self._terminal.isatty:
            self._terminal.rewrite(text, erase=True)
            self._terminal.write_line("")
        else:
            self._terminal.ensure_newline()
            self._terminal.write_line(text)

    @property
    def _terminal(self) -> pytest.TerminalReporter:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        assert isinstance(terminal, pytest.TerminalReporter)
        return terminal
