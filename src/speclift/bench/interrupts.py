"""Ctrl-C and SIGTERM: one way to the end from any state, however often they come.

The first signal ends what is under way: servers are stopped, records are kept, what exists is shown. The others change
nothing. Whatever has not ended END_LIMIT_S after the first is left as it is, which loses nothing: records are on disk,
and no engine outlives this process (engines/guardian.py).
"""

from __future__ import annotations

# asyncio is imported where it is used: this module is loaded before everything that takes its time.
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

EXIT_INTERRUPTED = 130
SIGNALS = (signal.SIGINT, signal.SIGTERM)
# From the first signal to the end; five seconds are promised.
END_LIMIT_S = 4.5
LATE = b"stopped; what was measured is kept, the rest was not waited for\n"

Told = TypeVar("Told")


class Interrupted(KeyboardInterrupt):
    """By a signal. Not KeyboardInterrupt itself: where that passes through exec(), as it does in a module that makes
    dataclasses, Python (3.11, run_eval_code_obj) ends the process by SIGINT although the exception was caught."""


class Interrupts:
    """What this process does about signals; the command line has one, `watching`."""

    def __init__(self) -> None:
        self.is_interrupted = False
        # Before anything was begun there is nothing to tidy up.
        self._is_starting = True
        # Whether this process is the command line's, and not that of a program that uses the package.
        self._is_program = False
        self._cancel: Callable[[], object] | None = None

    def watch(self) -> None:
        """From the first moment of the program on, before its slow imports."""
        self._is_program = True
        read, write = os.pipe()
        os.set_blocking(write, False)
        # Written to by the signal itself, so that it works while Python waits inside a system library.
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in _heeded():
            signal.signal(number, self._heed)
        threading.Thread(target=_end_for_sure, args=(read,), daemon=True).start()

    def begin(self) -> None:
        """The program is loaded; from here on a signal lets what was begun be tidied up."""
        self._is_starting = False

    def _heed(self, number: int, frame: FrameType | None) -> None:
        if self._is_starting:
            os._exit(EXIT_INTERRUPTED)
        self.is_interrupted = True
        # What comes after the first changes nothing, also while Python itself is being taken down.
        for each in _heeded():
            signal.signal(each, signal.SIG_IGN)
        if self._cancel is None:
            raise Interrupted
        self._cancel()

    @contextmanager
    def cancelling(self, cancel: Callable[[], object]) -> Iterator[None]:
        """Inside an event loop a signal cancels what runs there; an exception from nowhere would tear it apart."""
        if threading.current_thread() is not threading.main_thread():
            yield  # signals are the main thread's
            return
        before = {number: signal.getsignal(number) for number in _heeded()}
        self._cancel = cancel
        if not self._is_program:
            # Called from Python: the caller's handlers come back afterwards, and the caller may go on.
            self.is_interrupted, self._is_starting = False, False
            for number in before:
                signal.signal(number, self._heed)
        try:
            yield
        finally:
            self._cancel = None
            if not (self.is_interrupted and self._is_program):
                for number, handler in before.items():
                    signal.signal(number, handler)


def _heeded() -> tuple[signal.Signals, ...]:
    """Not what the program was started to ignore, as a shell does with Ctrl-C for jobs in the background."""
    return tuple(number for number in SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None))


def _end_for_sure(signals: int) -> None:
    # Whatever else is heeded (SIGHUP) comes this way too, and ends nothing.
    while os.read(signals, 1)[0] not in SIGNALS:
        pass
    time.sleep(END_LIMIT_S)
    os.write(2, LATE)
    os._exit(EXIT_INTERRUPTED)


watching = Interrupts()


def run_until_signal(work: Coroutine[object, None, Told]) -> Told:
    """`work` to its end; KeyboardInterrupt, after it tidied up, where a signal came first."""
    import asyncio

    try:
        return asyncio.run(_until_signal(work))
    except asyncio.CancelledError as error:
        raise KeyboardInterrupt from error


async def _until_signal(work: Coroutine[object, None, Told]) -> Told:
    import asyncio

    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    with watching.cancelling(lambda: loop.call_soon_threadsafe(task.cancel)):
        return await work


@contextmanager
def heeding_hangup(act: Callable[[], object]) -> Iterator[None]:
    """Inside an event loop: SIGHUP calls `act` there instead of ending the process."""
    import asyncio

    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    loop = asyncio.get_running_loop()
    before = signal.signal(signal.SIGHUP, lambda _number, _frame: loop.call_soon_threadsafe(act))
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
