"""replay."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from speclift.bench.ask import ReplayAsk
from speclift.cli.options import Flags, takes
from speclift.cli.screens import Json, screen, write_json
from speclift.core.errors import OperatingError
from speclift.core.flags import assembled

if TYPE_CHECKING:
    from speclift.replayer.result import LogCounts

# numpy, scipy, jinja2 and rich are imported where they are used: --help must not wait for them.

SAID_EVERY_S = 10.0
LOGS = "JSON lines with responses; also OpenAI batch, ShareGPT, a gateway's log, gzip; patterns, s3:// and the like."


@takes(Flags(ReplayAsk), as_parameter="asked")
def replay_command(
    asked: Mapping[str, object],
    *,
    logs: Annotated[list[str], typer.Argument(metavar="LOG", help=LOGS)],
    as_json: Json = False,
) -> None:
    """Estimate the accepted length of n-gram speculation on logged traffic. Needs no engine."""
    from speclift.core.document import plain_object
    from speclift.verbs.replay import replay

    console = screen(stderr=True)

    def say(text: str) -> None:
        console.print(text, style="dim", markup=False)

    result = replay(logs, assembled(ReplayAsk, asked), progress=_Progress(say), say=say)
    if as_json:
        write_json(plain_object(result))
    else:
        from speclift.views.replay_terminal import replay_view

        screen(stderr=False).print(replay_view(result))
    if result.unread:
        raise OperatingError(
            f"not all of the log was read: {'; '.join(result.unread)}",
            hint="the counts above are those of the rest",
        )


class _Progress:
    """A line now and then: a large log takes minutes."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._last_s = time.monotonic()

    def __call__(self, log: LogCounts) -> None:
        now_s = time.monotonic()
        if now_s - self._last_s >= SAID_EVERY_S:
            self._last_s = now_s
            self._say(f"{log.replayed:,} requests, {log.tokens:,} tokens so far")
