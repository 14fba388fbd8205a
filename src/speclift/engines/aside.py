"""Blocking calls beside the event loop that nobody has to wait for.

asyncio's own threads are joined when a program ends, so that a server that never answers would hold it up. A thread
of ours is left to itself as soon as whoever asked is cancelled.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

Told = TypeVar("Told")
Given = ParamSpec("Given")


async def aside(call: Callable[Given, Told], /, *args: Given.args, **kwargs: Given.kwargs) -> Told:
    """What `call` returns or raises, from a thread of its own."""
    return await asyncio.wrap_future(started(lambda: call(*args, **kwargs)))


def started(call: Callable[[], Told]) -> Future[Told]:
    """The call under way in a thread that ends with the program at the latest."""
    told: Future[Told] = Future()
    threading.Thread(target=_run, args=(call, told), daemon=True).start()
    return told


def _run(call: Callable[[], Told], told: Future[Told]) -> None:
    if not told.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - raised again where the result is awaited
        told.set_exception(error)
    else:
        told.set_result(result)
