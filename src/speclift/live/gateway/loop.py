"""The event loop of the gateway's connections: uvloop where it is installed, else Python's own loop (ADR 0008)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

Result = TypeVar("Result")
# Of one read: some hundred tokens, or a part of a long body.
READ_BYTES = 64 * 1024


def loop_name() -> str:
    """The name of the loop that `run_on_fastest_loop` runs on."""
    return "asyncio" if _uvloop_factory() is None else "uvloop"


def run_on_fastest_loop(main: Coroutine[object, object, Result]) -> Result:
    with asyncio.Runner(loop_factory=_uvloop_factory()) as runner:
        return runner.run(main)


def _uvloop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """None where it is not installed: it is an extra, and does not exist for every system."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def read_little(transport: asyncio.BaseTransport) -> None:
    """asyncio asks for 256 KiB with every read, and memory of that size is mapped and given back for every token: some
    6 µs, more than all of our own code takes. Other loops read into memory that they have."""
    if hasattr(transport, "max_size"):
        transport.max_size = READ_BYTES
