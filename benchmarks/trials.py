"""What the studies with known truth share: their flags, their requests and places, and the error of a percentage."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Mapping, Sequence

from speclift.core.records import Place
from speclift.core.traffic import Request
from speclift.workload.experiment import Turn

SEGMENTS = ("copy", "chat", "code")


def trial_options(description: str, **flags: bool | float | str) -> argparse.Namespace:
    """The command line: a flag for each name, with its default."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=description, formatter_class=raw)
    for name, default in flags.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, type=type(default), default=default, help="default: %(default)s")
    return parser.parse_args()


def slack(percent: float, count: int) -> float:
    """Two standard errors of a percentage of so many."""
    return 2 * math.sqrt(percent * (100 - percent) / count)


def dealt_requests(prompts: int) -> tuple[Request, ...]:
    """Requests dealt out over the segments."""
    return tuple(
        Request(id=f"p{number}", segment=SEGMENTS[number % len(SEGMENTS)], prompt="")
        for number in range(prompts)
    )


def places_of(
    several: Iterable[Turn],
    requests: Sequence[Request],
    arms: Sequence[str],
    *,
    temperatures: Mapping[str, float | None] | None = None,
    launch_from: int = 0,
) -> tuple[Place, ...]:
    """Every place of these turns in their order; each round starts every arm anew."""
    segment_of = {request.id: request.segment for request in requests}
    number_of = {name: number for number, name in enumerate(arms)}
    return tuple(
        Place(
            arm=turn.arm,
            launch=launch_from + turn.round * len(arms) + number_of[turn.arm],
            round=turn.round,
            block=turn.block,
            load=turn.load,
            request_id=item.request_id,
            segment=segment_of[item.request_id],
            temperature=temperatures[item.request_id] if temperatures else None,
        )
        for turn in several
        for item in turn.items
    )
