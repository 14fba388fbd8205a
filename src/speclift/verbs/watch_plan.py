"""A watch's servers and flags, what it holds servers against, and the look at one page alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from speclift.core.errors import StudyError, UsageError
from speclift.core.live import Payoff, Watched
from speclift.engines.metrics import read_page
from speclift.live.ask import WatchAsk
from speclift.live.server_watch import (
    BreakEvenAt,
    ServerWatch,
    WatchSettings,
    given_break_even,
    planned_break_even,
    studied_break_even,
)

if TYPE_CHECKING:
    from speclift.core.answer import NextCommand
    from speclift.core.judged import StudyBreakEvens
    from speclift.live.scraping import WatchedAddress

# What looks at a study, and what goes on and listens, is imported where it is asked for: one page needs neither.

Tell = Callable[[Watched], None]
# The worst server's, of its last look: not read, does not pay, nobody knows, pays.
EXIT_UNREACHABLE = 1
EXIT_CODES = {Payoff.DOES_NOT_PAY: 4, Payoff.UNSURE: 5, Payoff.NO_TRAFFIC: 5, Payoff.PAYS: 0}
_WORST_FIRST = (1, 4, 5, 0)


class WatchTarget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One server to watch, as it was typed."""

    url: str
    # Where it wants another key than the others.
    api_key_env: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchPlan:
    targets: tuple[WatchTarget, ...]
    ask: WatchAsk

    def addresses(self) -> list[WatchedAddress]:
        """Each once; UsageError where one is none, its key is not there, or it is named with two keys."""
        from speclift.core.address import concealed
        from speclift.live.scraping import WatchedAddress
        from speclift.verbs.keys import key_of

        shared = None if self.ask.api_key_env is None else key_of(self.ask.api_key_env, "--api-key-env")
        found: dict[str, WatchedAddress] = {}
        for target in self.targets:
            key = shared if target.api_key_env is None else key_of(target.api_key_env, "api_key_env")
            address = WatchedAddress(url=concealed(target.url), api_key=key)
            if found.setdefault(address.url, address) != address:
                raise UsageError(f"{address.url} is named twice, with two keys", hint="name it once")
        return list(found.values())


def watch_page(text: str, ask: WatchAsk, *, place: str, tell: Tell) -> Watched:
    """One page, as somebody saved it: what it counts since its server started."""
    settings, _ = watch_settings(replace(ask, once=True, for_s=None))
    page = read_page(text, at_s=time.monotonic(), wall_s=time.time())
    watched = ServerWatch(place, settings).read_alone(page)
    tell(watched)
    return watched


def watch_settings(ask: WatchAsk) -> tuple[WatchSettings, StudyBreakEvens | None]:
    """The terms that servers are held against, and the study's break-evens of its arm."""
    studied, again = (None, None) if ask.study is None else _studied(ask.study, ask.arm)
    break_even: BreakEvenAt = planned_break_even
    if ask.break_even is not None:
        break_even = given_break_even(ask.break_even)
    elif studied is not None:
        break_even = studied_break_even(studied.at_running, tuple(load.running for load in studied.loads))
    settings = WatchSettings(
        break_even=break_even,
        interval_s=ask.interval_s,
        window_s=ask.window_s,
        is_single_look=ask.once,
        again=again,
    )
    return settings, studied


def exit_code(last: Sequence[Watched]) -> int:
    codes = {EXIT_CODES[each.verdict] if each.unreachable is None else EXIT_UNREACHABLE for each in last}
    return next((code for code in _WORST_FIRST if code in codes), EXIT_CODES[Payoff.UNSURE])


def _studied(path: Path, arm: str | None) -> tuple[StudyBreakEvens, NextCommand | None]:
    from speclift.core.answer import NextCommand
    from speclift.core.rerun_command import CommandLine
    from speclift.verbs.judged import break_evens_of, prices_of

    prices = prices_of(path)
    evens, line = break_evens_of(prices, arm), CommandLine(prices.argv)
    if not evens.loads:
        raise StudyError(
            f"{path} has no accepted lengths of {evens.arm.name}, so no break-even",
            hint="give the accepted length from which on it pays: --break-even X",
        )
    if not line.can_be_repeated:
        return evens, None
    command = line.changed({"--study": [f"{path}-again"]})
    return evens, NextCommand(command=command, seconds=round(prices.seconds, 1))
