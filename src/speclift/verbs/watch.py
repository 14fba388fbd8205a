"""watch: does speculation still pay on servers that are running? Sends them nothing but questions about themselves."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from speclift.core.address import concealed, usable_key
from speclift.core.answer import NextCommand, ShortAnswer
from speclift.core.errors import StudyError, UsageError
from speclift.core.live import Payoff, Watched
from speclift.core.own_command import CommandLine
from speclift.engines.live_metrics import read_page
from speclift.live.answer import watch_answer
from speclift.live.ask import WatchAsk
from speclift.live.break_even import BreakEvenAt, GivenBreakEven, PlannedBreakEven, StudiedBreakEven
from speclift.live.scraping import WatchedAddress, watch_servers
from speclift.live.server_watch import ServerWatch, WatchSettings
from speclift.studies.study import Study
from speclift.verbs.break_even import measured_break_evens
from speclift.verbs.judge import judge
from speclift.verdict.break_even import StudyBreakEvens

Tell = Callable[[Watched, ShortAnswer], None]
# The worst server's, of its last look: not read, does not pay, nobody knows, pays.
EXIT_UNREACHABLE = 1
EXIT_CODES = {Payoff.DOES_NOT_PAY: 4, Payoff.UNSURE: 5, Payoff.NO_TRAFFIC: 5, Payoff.PAYS: 0}
_WORST_FIRST = (1, 4, 5, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchGround:
    """What servers are held against."""

    settings: WatchSettings
    # What the study knows of its arm, and the command that measures it again.
    studied: StudyBreakEvens | None = None
    again: NextCommand | None = None

    def answer(self, watched: Watched) -> ShortAnswer:
        return watch_answer(watched, self.again)


async def watch(urls: Sequence[str], ask: WatchAsk, *, tell: Tell) -> dict[str, Watched]:
    """Until `for_s` is over or somebody cancels it; the last that was known of every server."""
    ground = watch_ground(ask)
    addresses = [WatchedAddress(url=concealed(url)) for url in dict.fromkeys(urls)]
    servers = [(address, ServerWatch(address.url, ground.settings)) for address in addresses]
    last: dict[str, Watched] = {}

    def hear(watched: Watched) -> None:
        last[watched.url] = watched
        tell(watched, ground.answer(watched))

    await watch_servers(servers, ground.settings, api_key=_key(ask), for_s=ask.for_s, tell=hear)
    return last


def watch_page(text: str, ask: WatchAsk, *, place: str, tell: Tell) -> Watched:
    """One page, as somebody saved it: what it counts since its server started."""
    ground = watch_ground(replace(ask, once=True, for_s=None))
    page = read_page(text, at_s=time.monotonic(), wall_s=time.time())
    watched = ServerWatch(place, ground.settings).read_alone(page)
    tell(watched, ground.answer(watched))
    return watched


def watch_ground(ask: WatchAsk) -> WatchGround:
    studied, again = (None, None) if ask.study is None else _studied(ask.study, ask.arm)
    break_even: BreakEvenAt = PlannedBreakEven()
    if ask.break_even is not None:
        break_even = GivenBreakEven(ask.break_even)
    elif studied is not None:
        break_even = StudiedBreakEven(studied.at_running, tuple(load.running for load in studied.loads))
    settings = WatchSettings(
        break_even=break_even, interval_s=ask.interval_s, window_s=ask.window_s, is_single_look=ask.once
    )
    return WatchGround(settings=settings, studied=studied, again=again)


def exit_code(last: Sequence[Watched]) -> int:
    codes = {EXIT_UNREACHABLE if each.unreachable else EXIT_CODES[each.payoff] for each in last}
    return next((code for code in _WORST_FIRST if code in codes), EXIT_CODES[Payoff.UNSURE])


def _studied(path: Path, arm: str | None) -> tuple[StudyBreakEvens, NextCommand | None]:
    with Study.open(path) as study:
        judgement = judge([study])
        found = measured_break_evens(study, judgement, arm=arm)
        line, effort = CommandLine(study.provenance.argv), judgement.effort
    if not found.loads:
        raise StudyError(
            f"{path} has no accepted lengths of {found.arm.name}, so no break-even",
            hint="give the accepted length from which on it pays: --break-even X",
        )
    if not line.can_be_repeated:
        return found, None
    seconds = effort.starting_s + effort.asking_s + effort.checking_s
    return found, NextCommand(command=line.changed({"--study": [f"{path}-again"]}), seconds=seconds)


def _key(ask: WatchAsk) -> str | None:
    if ask.api_key_env is None:
        return None
    key = os.environ.get(ask.api_key_env)
    if not key:
        raise UsageError(
            f"--api-key-env names {ask.api_key_env}, which is not set", hint=f"export {ask.api_key_env}=..."
        )
    return usable_key(key, where=ask.api_key_env)
