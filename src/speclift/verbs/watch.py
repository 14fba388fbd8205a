"""watch: does speculation still pay on servers that are running? Sends them nothing but questions about themselves."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from speclift.core.address import concealed, usable_key
from speclift.core.errors import StudyError, UsageError
from speclift.core.live import Payoff, Watched
from speclift.engines.live_metrics import read_page
from speclift.live.ask import WatchAsk
from speclift.live.break_even import BreakEvenAt, GivenBreakEven, PlannedBreakEven, StudiedBreakEven
from speclift.live.scraping import WatchedAddress, watch_servers
from speclift.live.server_watch import ServerWatch, WatchSettings
from speclift.verbs.break_even import break_evens_of

Tell = Callable[[Watched], None]
# The worst server's, of its last look: not read, does not pay, nobody knows, pays.
EXIT_UNREACHABLE = 1
EXIT_CODES = {Payoff.DOES_NOT_PAY: 4, Payoff.UNSURE: 5, Payoff.NO_TRAFFIC: 5, Payoff.PAYS: 0}
_WORST_FIRST = (1, 4, 5, 0)


async def watch(urls: Sequence[str], ask: WatchAsk, *, tell: Tell) -> dict[str, Watched]:
    """Until `for_s` is over or somebody cancels it; the last that was known of every server."""
    settings = watch_settings(ask)
    addresses = [WatchedAddress(url=concealed(url)) for url in dict.fromkeys(urls)]
    servers = [(address, ServerWatch(address.url, settings)) for address in addresses]
    last: dict[str, Watched] = {}

    def hear(watched: Watched) -> None:
        last[watched.url] = watched
        tell(watched)

    await watch_servers(servers, settings, api_key=_key(ask), for_s=ask.for_s, tell=hear)
    return last


def watch_page(text: str, ask: WatchAsk, *, place: str) -> Watched:
    """One page, as somebody saved it: what it counts since its server started."""
    page = read_page(text, at_s=time.monotonic(), wall_s=time.time())
    return ServerWatch(place, watch_settings(ask, is_single_look=True)).read_alone(page)


def watch_settings(ask: WatchAsk, *, is_single_look: bool = False) -> WatchSettings:
    return WatchSettings(
        break_even=_break_even(ask),
        interval_s=ask.interval_s,
        window_s=ask.window_s,
        is_single_look=ask.once or is_single_look,
    )


def exit_code(last: Sequence[Watched]) -> int:
    codes = {EXIT_UNREACHABLE if each.unreachable else EXIT_CODES[each.payoff] for each in last}
    return next((code for code in _WORST_FIRST if code in codes), EXIT_CODES[Payoff.UNSURE])


def _break_even(ask: WatchAsk) -> BreakEvenAt:
    if ask.break_even is not None:
        return GivenBreakEven(ask.break_even)
    if ask.study is None:
        return PlannedBreakEven()
    found = break_evens_of(ask.study, arm=ask.arm)
    if not found.loads:
        raise StudyError(
            f"{ask.study} has no accepted lengths of {found.arm.name}, so no break-even",
            hint="give the accepted length from which on it pays: --break-even X",
        )
    return StudiedBreakEven(found.at_running, tuple(load.running for load in found.loads))


def _key(ask: WatchAsk) -> str | None:
    if ask.api_key_env is None:
        return None
    key = os.environ.get(ask.api_key_env)
    if not key:
        raise UsageError(
            f"--api-key-env names {ask.api_key_env}, which is not set", hint=f"export {ask.api_key_env}=..."
        )
    return usable_key(key, where=ask.api_key_env)
