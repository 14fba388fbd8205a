"""Tests that run again and again in forks of one process, each time with one change made to the functions in memory.

The tests are collected and run once as they are, to see how long each takes and which functions it reaches. Then every
change meets the tests that reach it, the quickest first, until one fails.
"""

from __future__ import annotations

import functools
import gc
import os
import resource
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType

import pytest

# Where a function stands: file, qualified name, first line.
Place = tuple[str, str, int]

# A change may make a loop endless, or endlessly hungry: a test has then failed.
PATIENCE = 8.0
TIMEOUT_MIN_S = 20.0
MEMORY_MAX_BYTES = 8 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The functions of a file as they would be, and the one that differs; None where only what runs on import does."""

    codes: dict[Place, CodeType]
    changed: Place | None


def change(path: Path, before: str, after: str) -> Change:
    """`before` says what the file says, laid out as `after` is."""
    codes: dict[Place, CodeType] = {}
    changed = None
    sources = path.read_text(encoding="utf-8"), before, after
    for live, same, other in zip(*(_functions(source, str(path)) for source in sources), strict=True):
        codes[_place(live)] = other
        if _does(same) != _does(other):
            changed = _place(live)
    return Change(codes=codes, changed=changed)


def _does(code: CodeType) -> tuple[object, ...]:
    """What it does itself, wherever it stands and whatever the functions inside it do."""
    constants = [repr(constant) for constant in code.co_consts if not isinstance(constant, CodeType)]
    return code.co_code, constants, code.co_names


def _functions(source: str, file: str) -> Iterator[CodeType]:
    """The outer ones first; of classes only what is inside them."""
    outside: list[tuple[CodeType, bool]] = [(compile(source, file, "exec", dont_inherit=True), False)]
    while outside:
        code, is_function = outside.pop()
        if is_function:
            yield code
        # 0x2: CO_NEWLOCALS, which functions have and the bodies of modules and classes do not.
        inside = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        outside += [(constant, bool(constant.co_flags & 0x2)) for constant in inside]


def _place(code: CodeType) -> Place:
    return code.co_filename, code.co_qualname, code.co_firstlineno


class MutatedTests:
    """A pytest plugin in the place of the loop over the tests; hands itself to `judge` once it knows them."""

    def __init__(self, judge: Callable[[MutatedTests], None], *, longest_s: float) -> None:
        self._judge = judge
        self._longest_s = longest_s
        self._reaching: dict[Place, list[pytest.Item]] = defaultdict(list)
        self._seconds: dict[str, float] = {}
        # Tests that fail as they are, or take too long.
        self.left_out: list[str] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for item in session.items:
            self._watch(item)
        for items in self._reaching.values():
            items.sort(key=lambda item: self._seconds[item.nodeid])
        self._judge(self)
        return True

    def _watch(self, item: pytest.Item) -> None:
        reached: set[CodeType] = set()

        def trace(frame: FrameType, _event: str, _argument: object) -> None:
            reached.add(frame.f_code)

        begun_s = time.monotonic()
        threading.settrace(trace)
        sys.settrace(trace)
        try:
            is_passed = _passes(item)
        finally:
            sys.settrace(None)
            threading.settrace(None)
        took_s = self._seconds[item.nodeid] = time.monotonic() - begun_s
        if is_passed and took_s <= self._longest_s:
            for code in reached:
                self._reaching[_place(code)].append(item)
        else:
            self.left_out.append(item.nodeid)

    def reaching(self, changed: Change, folders: tuple[str, ...]) -> list[pytest.Item]:
        """The tests below `folders` that come to where it differs."""
        if changed.changed is None:
            return []
        return [item for item in self._reaching[changed.changed] if item.nodeid.startswith(folders)]

    def catches(self, changed: Change, items: list[pytest.Item]) -> bool:
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
        status = 1
        try:
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX_BYTES, MEMORY_MAX_BYTES))
            _put_in_place(changed)
            status = int(not all(self._passes_in_time(item) for item in items))
        finally:
            os._exit(status)

    def _passes_in_time(self, item: pytest.Item) -> bool:
        timeout_s = max(TIMEOUT_MIN_S, PATIENCE * self._seconds[item.nodeid])
        item.add_marker(pytest.mark.timeout(timeout_s), append=False)
        return _passes(item)


def _passes(item: pytest.Item) -> bool:
    failed_before = item.session.testsfailed
    item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
    return item.session.testsfailed == failed_before


def _put_in_place(changed: Change) -> None:
    # tests/conftest.py freezes what was collected, and what is frozen is not listed.
    gc.unfreeze()
    for value in gc.get_objects():
        if isinstance(value, FunctionType) and _place(value.__code__) in changed.codes:
            value.__code__ = changed.codes[_place(value.__code__)]
        elif isinstance(value, functools._lru_cache_wrapper):
            # What the unchanged functions returned.
            value.cache_clear()
