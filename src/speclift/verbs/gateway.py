"""gateway: each request to the pool where it is fastest, by what a study measured."""

from __future__ import annotations

import asyncio
import gc
import json
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from speclift import __version__
from speclift.core.address import base_of, concealed
from speclift.core.document import plain
from speclift.core.errors import SpecliftError, StudyError, UsageError
from speclift.core.foreign_text import parse_json
from speclift.core.json_reading import as_object, as_text
from speclift.core.live import Watched
from speclift.core.routing import PoolStates, RequestFeatures, RoutedRequest, ServerState
from speclift.core.units import Seconds
from speclift.http.message import HttpRequest
from speclift.http.pages import HTML, Route, WebAnswer, WebRequest
from speclift.live.ask import GatewayAsk, WatchAsk
from speclift.live.gateway.access_log import AccessLog
from speclift.live.gateway.health import TurnedAway
from speclift.live.gateway.loop import loop_name, run_on_fastest_loop
from speclift.live.gateway.service import GatewayService, GatewaySettings
from speclift.routing.features import CHAT_PATHS, COMPLETION_PATHS, Repeats, read_features
from speclift.routing.learning import Learner
from speclift.routing.policy import Policy
from speclift.routing.router import Router
from speclift.routing.tallies import Tallies
from speclift.studies.outputs import require_no_database
from speclift.verbs.keys import key_of, token_of
from speclift.views.exposition import CONTENT_TYPE, gateway_exposition
from speclift.views.gateway_page import GatewayBoard, gateway_document, gateway_page
from speclift.views.gateway_route import ExplainedRoute, explained
from speclift.views.watch_page import PageFrame

REFRESH_S: Seconds = 5.0
# Of names of conversations, made anew for each process: what is hashed cannot be looked up elsewhere.
SESSION_KEY_BYTES = 16

Ready = Callable[[str, tuple[str, ...]], None]
Say = Callable[[str], None]


def run_gateway(ask: GatewayAsk, *, ready: Ready, say: Say) -> tuple[int, bool]:
    """Runs it with this process to itself; how many streams were cut off at the end, and whether Ctrl-C ended it."""

    def settled(listening: str, lines: tuple[str, ...]) -> None:
        # What was imported stays to the end: looking through it for garbage held every stream up for 50 ms.
        gc.collect()
        gc.freeze()
        ready(listening, (*lines, f"event loop: {loop_name()}"))

    return run_on_fastest_loop(gateway(ask, ready=settled, say=say))


async def gateway(ask: GatewayAsk, *, ready: Ready, say: Say = lambda _: None) -> tuple[int, bool]:
    """Serves until SIGTERM or Ctrl-C, then finishes what is under way. `ready` hears host:port once callers can
    connect, with what else there is to know of it; `say` what is worth a line later on."""
    async with AsyncExitStack() as stack:
        work = _Gateway(ask, say)
        stack.push_async_callback(work.close)
        stopping = _Stopping()
        stack.enter_context(_heeding(stopping, work))
        listening = await work.service.open(ask.listen.host, ask.listen.port)
        stack.enter_context(work.watching_counts())
        ready(listening, work.lines())
        await stopping.asked.wait()
        cut = await _drained(work.service, stopping, ask.drain_s)
    return cut, stopping.is_interrupted


async def _drained(service: GatewayService, stopping: _Stopping, limit_s: float) -> int:
    """How many streams were cut off: by the limit, or by whoever asks a second time."""
    draining = asyncio.create_task(service.drain(limit_s=limit_s))
    again = asyncio.create_task(stopping.asked_again.wait())
    done, waiting = await asyncio.wait({draining, again}, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    return draining.result() if draining in done else service.busy


class GatewayPages:
    """`note` counts what is shown, `routes` shows it."""

    def __init__(
        self,
        *,
        pools: Callable[[], PoolStates],
        policy: Callable[[], str | None],
        learner: Learner,
        wall_clock: Callable[[], Seconds] = time.time,
        clock: Callable[[], Seconds] = time.monotonic,
    ) -> None:
        """What may change on the way is asked for each time."""
        self._pools, self._policy, self._learner = pools, policy, learner
        self._wall_clock, self._clock = wall_clock, clock
        self._tallies = Tallies()
        self._since_s, self._began_s = wall_clock(), clock()

    def note(self, request: RoutedRequest) -> None:
        self._tallies.note(request, now_s=self._clock())

    def routes(self) -> Mapping[str, Route]:
        return {"/speclift/": self._page, "/speclift/api/now": self._now, "/metrics": self._metrics}

    def board(self) -> GatewayBoard:
        learner = self._learner
        return GatewayBoard(
            version=__version__,
            at_s=self._wall_clock(),
            since_s=self._since_s,
            now_s=self._clock(),
            tallies=self._tallies,
            pools=self._pools(),
            policy=self._policy(),
            canary=learner.canary,
            learns=learner.learns,
            segments=learner.segments(),
            shifts=tuple(learner.shifts),
            shift_counts=learner.shift_counts,
        )

    def _page(self, request: WebRequest) -> WebAnswer:
        frame = PageFrame(nonce=request.nonce, every_s=REFRESH_S, version=__version__)
        document = gateway_document(self.board())
        page = gateway_page(document, frame, up_s=self._clock() - self._began_s)
        return WebAnswer(body=page.encode(), kind=HTML)

    def _now(self, _: WebRequest) -> WebAnswer:
        return WebAnswer(body=json.dumps(plain(gateway_document(self.board()))).encode() + b"\n")

    def _metrics(self, _: WebRequest) -> WebAnswer:
        return WebAnswer(body=gateway_exposition(self.board()).encode(), kind=CONTENT_TYPE)


class _Gateway:
    """One gateway while it runs: what the service, the router, the log and the looks at counters have to do with each
    other."""

    def __init__(self, ask: GatewayAsk, say: Say) -> None:
        self._ask, self._say = ask, say
        settings = gateway_settings(ask)
        self._session_key = secrets.token_bytes(SESSION_KEY_BYTES)
        self._policy, self._repeats = _followed(ask.policy, learn=ask.learn)
        self._learner = Learner(canary=ask.canary, learn=ask.learn)
        self._router = Router(self._policy, learning=self._learner, seed=secrets.randbits(32))
        if ask.access_log is not None:
            require_no_database(ask.access_log, flag="--access-log")
        self._log = (
            None if ask.access_log is None else AccessLog(ask.access_log, keeps_text=ask.log_text, say=say)
        )
        self._turned = TurnedAway(settings.spec)
        self._reading: asyncio.Task[None] | None = None
        self._wants_reading = False
        self._settings = settings
        self.service = GatewayService(
            settings, self._router, read_features=self._read, report=self._hear, say=say
        )
        self._pages = GatewayPages(
            pools=self.service.pools,
            policy=lambda: None if ask.policy is None else str(ask.policy),
            learner=self._learner,
        )
        self.service.use_pages(self._pages.routes())

    def lines(self) -> tuple[str, ...]:
        """Lines for whoever started it."""
        if self._policy is None:
            return ("no policy: everything goes to --spec, and to --plain where that does not answer",)
        return tuple(policy_lines(self._policy))

    async def close(self) -> None:
        await self.service.close()
        if self._log is not None:
            await asyncio.to_thread(self._log.close)

    def read_anew(self) -> None:
        """Reads the policy again beside the traffic; one that must not be followed changes nothing."""
        if self._log is not None:
            self._log.reopen()
        if self._ask.policy is None:
            return
        self._wants_reading = True
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._follow(self._ask.policy))

    async def _follow(self, path: Path) -> None:
        """One reading after the other: of two at once, the older might end last."""
        while self._wants_reading:
            self._wants_reading = False
            try:
                policy, repeats = await asyncio.to_thread(_followed, path, learn=self._ask.learn)
            except SpecliftError as error:
                self._say(f"policy not read anew, the old one stays: {error}")
                continue
            self._policy, self._repeats = policy, repeats
            self._router.follow(policy)
            self._say(f"policy read anew: {path}")

    @contextmanager
    def watching_counts(self) -> Iterator[None]:
        """Holds the servers' own counters against the study's break-even, if there is a study."""
        path = self._ask.policy
        if path is None or not path.is_dir():
            yield
            return
        # Not before: a gateway without a study has no use for them.
        from speclift.live.scraping import Rounds, WatchedAddress
        from speclift.verbs.watch_plan import watch_settings

        try:
            settings, _ = watch_settings(WatchAsk(study=path))
        except StudyError as error:
            self._say(f"the servers' own counters are not looked at: {error}")
            yield
            return
        rounds = Rounds(settings, for_s=None, tell=self._look)
        addresses = [WatchedAddress(url=url, api_key=self._settings.api_key) for url in self._settings.spec]
        task = asyncio.get_running_loop().create_task(rounds.run(addresses))
        try:
            yield
        finally:
            task.cancel()

    def _look(self, watched: Watched) -> None:
        self._turned.take(watched, now_s=time.monotonic())

    def _read(self, request: HttpRequest) -> RequestFeatures:
        words = self._turned.against(now_s=time.monotonic())
        if words != self.service.state.against_spec:
            self.service.state.against_spec = words
            self._say(f"speculation does not pay: {words}" if words else "speculation is tried again")
        return read_features(
            request.path,
            request.field_text(),
            request.body,
            repeats=self._repeats,
            key=self._session_key,
        )

    def _hear(self, request: RoutedRequest) -> None:
        self._pages.note(request)
        if self._log is not None:
            self._log.note(request)


def _followed(path: Path | None, *, learn: bool) -> tuple[Policy | None, Repeats | None]:
    """The policy at this path, and the look at prompts that it wants."""
    if path is None:
        return None, None
    # Not before: what reads policies also reads studies, and a gateway without one has no use for it.
    from speclift.verbs.gateway_policy import load_policy, prompt_look

    policy = load_policy(path, learn=learn)
    return policy, prompt_look(policy, time.perf_counter)


def gateway_settings(ask: GatewayAsk) -> GatewaySettings:
    """UsageError where an address is none, a server is named twice, or a key is not there."""
    spec, plain = (tuple(concealed(base_of(url)) for url in urls) for urls in (ask.spec, ask.plain))
    for url in spec + plain:
        if url.endswith(tuple(CHAT_PATHS) + tuple(COMPLETION_PATHS)):
            raise UsageError(
                f"{url} is the address of one question, and a server's is wanted",
                hint="leave out what stands behind host and port, or behind the path that a proxy gave the server",
            )
        if (spec + plain).count(url) > 1:
            raise UsageError(
                f"{url} was named twice", hint="a server belongs to --spec or to --plain, and is named once"
            )
    return GatewaySettings(
        spec=spec,
        plain=plain,
        token=None if ask.token_env is None else token_of(ask.token_env),
        api_key=None if ask.api_key_env is None else key_of(ask.api_key_env, "--api-key-env"),
        is_loopback=ask.listen.is_loopback,
        keeps_text=ask.log_text,
    )


def policy_lines(policy: Policy) -> Iterator[str]:
    """One line per segment: where it goes."""
    for segment in policy.segments:
        measured = f", {segment.speedup:.2f}x measured" if segment.speedup is not None else ", not measured"
        yield f"{segment.name} goes to {segment.pool.value}{measured}"
    yield f"everything else goes to {policy.elsewhere.value}"


def explained_route(ask: GatewayAsk, data: bytes) -> ExplainedRoute:
    """The route of one request that is not sent, as if every server were up and idle. `data` is its JSON body, or an
    object with its path, headers and body. UsageError where it is neither."""
    settings = gateway_settings(ask)
    policy, repeats = _followed(ask.policy, learn=ask.learn)
    path, fields, body = _told_request(data)
    features = read_features(path, fields, body, repeats=repeats)
    pools = PoolStates(
        spec=tuple(ServerState(url=url) for url in settings.spec),
        plain=tuple(ServerState(url=url) for url in settings.plain),
    )
    route = Router(policy).route(features, pools, now_s=0.0)
    return explained(features, route, policy=None if ask.policy is None else str(ask.policy))


def _told_request(data: bytes) -> tuple[str, dict[str, str], bytes]:
    """Path, header fields, body."""
    try:
        told = parse_json(data)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise UsageError(
            "stdin holds no request: a JSON object is wanted",
            hint="""echo '{"messages": [{"role": "user", "content": "Hi"}]}' | speclift gateway ... --dry-run""",
        )
    if not isinstance(told.get("body"), dict):
        return (CHAT_PATHS if "messages" in told else COMPLETION_PATHS)[0], {}, data
    usual = (CHAT_PATHS if "messages" in told["body"] else COMPLETION_PATHS)[0]
    fields = {str(name).lower(): str(value) for name, value in as_object(told.get("headers")).items()}
    return as_text(told.get("path")) or usual, fields, json.dumps(told["body"]).encode()


class _Stopping:
    """The first signal drains, the second ends it."""

    def __init__(self) -> None:
        self.asked, self.asked_again = asyncio.Event(), asyncio.Event()
        self.is_interrupted = False

    def heed(self, *, is_interrupt: bool) -> None:
        (self.asked_again if self.asked.is_set() else self.asked).set()
        self.is_interrupted = self.is_interrupted or is_interrupt


@contextmanager
def _heeding(stopping: _Stopping, work: _Gateway) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    loop = asyncio.get_running_loop()
    acts: dict[signal.Signals, Callable[[], None]] = {
        signal.SIGTERM: lambda: stopping.heed(is_interrupt=False),
        signal.SIGINT: lambda: stopping.heed(is_interrupt=True),
        signal.SIGHUP: work.read_anew,
        signal.SIGUSR1: lambda: work.service.switch(is_plain_only=True),
        signal.SIGUSR2: lambda: work.service.switch(is_plain_only=False),
    }
    for number, act in acts.items():
        loop.add_signal_handler(number, act)
    try:
        yield
    finally:
        for number in acts:
            loop.remove_signal_handler(number)
