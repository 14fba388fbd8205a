"""Requests that warm a server up at every shape it will be measured at. Their records are kept apart."""

from __future__ import annotations

from speclift.core.traffic import Concurrency, Load, Message, Request

WARMUP_BLOCK = -1
WARMUP_TOKENS = 16

_SHORT = "Name three rivers."
# Long enough that prefill runs at a realistic batch size.
_LONG = "Read this list and say how many items it has: " + ", ".join(
    f"a {colour} {thing}"
    for colour in ("red", "green", "blue", "white")
    for thing in ("kettle", "ladder", "button", "garden", "window", "ticket", "basket", "mirror")
)


def warmup_requests(load: Load) -> tuple[Request, ...]:
    """Two per stream, short and long, none of them from the workload."""
    streams = load.streams if isinstance(load, Concurrency) else 2
    return tuple(
        Request(
            id=f"warm-up-{index}",
            segment="warm-up",
            messages=(Message(role="user", content=f"{text} ({index})"),),
            temperature=0.0,
            max_tokens=WARMUP_TOKENS,
        )
        for index, text in enumerate((_SHORT, _LONG) * streams)
    )
