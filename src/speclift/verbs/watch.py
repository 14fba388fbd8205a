"""watch: does speculation still pay on servers that are running? Sends them nothing but questions about themselves."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from speclift.bench.interrupts import heeding_hangup
from speclift.core.address import concealed
from speclift.core.answer import NextCommand, ShortAnswer
from speclift.core.errors import OperatingError, SpecliftError, StudyError, UsageError
from speclift.core.live import Payoff, Watched
from speclift.core.own_command import CommandLine
from speclift.engines.live_metrics import read_page
from speclift.live.answer import watch_answer
from speclift.live.ask import WatchAsk
from speclift.live.board import Board
from speclift.live.break_even import BreakEvenAt, GivenBreakEven, PlannedBreakEven, StudiedBreakEven
from speclift.live.history import History
from speclift.live.http_service import Guard, HttpService
from speclift.live.scraping import Rounds, WatchedAddress
from speclift.live.server_watch import ServerWatch, WatchSettings
from speclift.live.webhook import Webhook, webhook_address
from speclift.studies.private import private_file, private_folder
from speclift.studies.study import Study
from speclift.verbs.break_even import measured_break_evens
from speclift.verbs.judge import judge
from speclift.verbs.keys import key_of, token_of
from speclift.verbs.watch_service import WatchPages
from speclift.verdict.break_even import StudyBreakEvens
from speclift.views.watch_document import watch_document

Tell = Callable[[Watched, ShortAnswer], None]
# The worst server's, of its last look: not read, does not pay, nobody knows, pays.
EXIT_UNREACHABLE = 1
EXIT_CODES = {Payoff.DOES_NOT_PAY: 4, Payoff.UNSURE: 5, Payoff.NO_TRAFFIC: 5, Payoff.PAYS: 0}
_WORST_FIRST = (1, 4, 5, 0)
# What is open or under way already when settings are read anew.
FIXED = ("listen", "token_env", "history", "webhook", "webhook_key_env", "for_s", "once")
# At the end, for documents that are still on their way.
DRAIN_LIMIT_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchGround:
    """What servers are held against."""

    settings: WatchSettings
    # What the study knows of its arm, and the command that measures it again.
    studied: StudyBreakEvens | None = None
    again: NextCommand | None = None

    def answer(self, watched: Watched) -> ShortAnswer:
        return watch_answer(watched, self.again)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTarget:
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
        shared = None if self.ask.api_key_env is None else key_of(self.ask.api_key_env, "--api-key-env")
        found: dict[str, WatchedAddress] = {}
        for target in self.targets:
            key = shared if target.api_key_env is None else key_of(target.api_key_env, "api_key_env")
            address = WatchedAddress(url=concealed(target.url), api_key=key)
            if found.setdefault(address.url, address) != address:
                raise UsageError(f"{address.url} is named twice, with two keys", hint="name it once")
        return list(found.values())


async def watch(
    plan: WatchPlan,
    *,
    tell: Tell,
    say: Callable[[str], None] = lambda _: None,
    reread: Callable[[], WatchPlan] | None = None,
) -> dict[str, Watched]:
    """Until `for_s` is over or somebody cancels it; the last that was known of every server. `reread` is called where
    a SIGHUP wants the settings read anew; `say` hears what is worth a line beside the answers."""
    addresses, ask = plan.addresses(), plan.ask
    watching = _Watching(plan, watch_ground(ask), tell=tell, say=say)
    async with AsyncExitStack() as stack:
        stack.callback(watching.close)
        if reread is not None:
            stack.enter_context(heeding_hangup(lambda: watching.read_anew(reread)))
        if ask.listen is not None:
            token = None if ask.token_env is None else token_of(ask.token_env)
            guard = Guard(token=token, is_loopback=ask.listen.is_loopback)
            service = HttpService(watching.pages().routes(), guard)
            stack.push_async_callback(service.close)
            say(f"listening on {await service.open(ask.listen.host, ask.listen.port)}")
        if watching.webhook is not None:
            stack.push_async_callback(watching.webhook.drain, limit_s=DRAIN_LIMIT_S)
            stack.push_async_callback(_ended, asyncio.create_task(watching.webhook.run()))
        await watching.rounds.run(addresses)
    return watching.last


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class _Watching:
    """A watch while it goes on."""

    def __init__(
        self, plan: WatchPlan, ground: WatchGround, *, tell: Tell, say: Callable[[str], None]
    ) -> None:
        ask = plan.ask
        self.last: dict[str, Watched] = {}
        self._plan, self._ground, self._tell, self._say = plan, ground, tell, say
        self.webhook = _webhook(ask, say)
        history = History(_history_file(ask)) if ask.listen is not None or ask.history is not None else None
        self._board = Board(history, recent_s=max(ask.window_s, 3 * ask.interval_s), say=say)
        self.rounds = Rounds(ground.settings, for_s=ask.for_s, tell=self._hear)
        self._reading: set[asyncio.Task[None]] = set()

    def pages(self) -> WatchPages:
        return WatchPages(
            self._board,
            answer=self._answer,
            studied=lambda: self._ground.studied,
            interval_s=lambda: self._ground.settings.interval_s,
        )

    def close(self) -> None:
        self._board.close()

    def read_anew(self, reread: Callable[[], WatchPlan]) -> None:
        """Beside the watch, which goes on as it was where the new settings are wrong."""
        reading = asyncio.get_running_loop().create_task(self._take_over(reread))
        self._reading.add(reading)
        reading.add_done_callback(self._reading.discard)

    async def _take_over(self, reread: Callable[[], WatchPlan]) -> None:
        try:
            plan = reread()
            addresses = plan.addresses()
            ground = await asyncio.to_thread(watch_ground, plan.ask)
            await self.rounds.begun.wait()
        except SpecliftError as error:
            self._say(f"settings not read anew, the old ones stay: {error}")
            return
        fixed = [name for name in FIXED if getattr(plan.ask, name) != getattr(self._plan.ask, name)]
        if fixed:
            self._say(f"only a new start changes {', '.join(name.removesuffix('_s') for name in fixed)}")
        self._plan, self._ground = plan, ground
        self.rounds.change(addresses, ground.settings)
        urls = {address.url for address in addresses}
        self._board.keep_only(urls)
        self.last = {url: watched for url, watched in self.last.items() if url in urls}
        self._say(f"settings read anew: {len(urls)} servers")

    def _answer(self, watched: Watched) -> ShortAnswer:
        return self._ground.answer(watched)

    def _hear(self, watched: Watched) -> None:
        watched, is_news = self._board.take(watched)
        self.last[watched.url] = watched
        answer = self._answer(watched)
        if is_news and self.webhook is not None:
            self.webhook.post(json.dumps(watch_document(watched, answer), allow_nan=False).encode())
        self._tell(watched, answer)


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


def _webhook(ask: WatchAsk, say: Callable[[str], None]) -> Webhook | None:
    if ask.webhook is None:
        return None
    key = None if ask.webhook_key_env is None else key_of(ask.webhook_key_env, "--webhook-key-env")
    return Webhook(webhook_address(ask.webhook, key), say=say)


def _history_file(ask: WatchAsk) -> Path:
    """There, and for the user alone."""
    path = ask.history
    if path is None:
        shared = Path(os.environ.get("XDG_STATE_HOME", ""))
        # The XDG specification has relative paths ignored.
        path = (
            (shared if shared.is_absolute() else Path.home() / ".local" / "state") / "speclift" / "watch.db"
        )
    try:
        private_folder(path.parent)
        private_file(path)
    except OSError as error:
        raise OperatingError(
            f"the history cannot be written to {path}: {error.strerror or error}",
            hint="give another file: --history FILE",
        ) from error
    return path
