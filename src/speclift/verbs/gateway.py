"""gateway: each request to the pool where it is fastest, by what a study measured."""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from speclift.core.address import base_of, concealed
from speclift.core.errors import SpecliftError, UsageError
from speclift.core.routing import RequestFeatures, Route, RoutedRequest
from speclift.live.gateway.ask import GatewayAsk
from speclift.live.gateway.requests import CallerRequest
from speclift.live.gateway.service import GatewayService, GatewaySettings
from speclift.routing.features import read_features
from speclift.routing.policy import Policy
from speclift.routing.router import Router
from speclift.verbs.gateway_policy import load_policy
from speclift.verbs.keys import key_of, token_of

# Of names of conversations, made anew for each process: what is hashed cannot be looked up elsewhere.
SESSION_KEY_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayEnd:
    """How a gateway ended."""

    # Streams that were cut off because the time to drain was over.
    cut: int
    # By Ctrl-C, and not by being told to stop.
    is_interrupted: bool


async def gateway(
    ask: GatewayAsk, *, ready: Callable[[str], None], say: Callable[[str], None] = lambda _: None
) -> GatewayEnd:
    """Until SIGTERM or Ctrl-C, then what is under way is finished. `ready` hears host:port once callers can connect,
    `say` what is worth a line."""
    settings = gateway_settings(ask)
    policy = None if ask.policy is None else load_policy(ask.policy, learn=ask.learn)
    router = Router(policy, seed=secrets.randbits(32))
    service = GatewayService(
        settings, router, read_features=_reader_of(policy), report=lambda request: None, say=say
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(service.close)
        stopping = _Stopping()
        stack.enter_context(_heeding(stopping, service, partial(_read_anew, ask, service, router, say)))
        ready(await service.open(ask.listen.host, ask.listen.port))
        await stopping.asked.wait()
        draining = asyncio.create_task(service.drain(limit_s=ask.drain_s))
        again = asyncio.create_task(stopping.asked_again.wait())
        await asyncio.wait({draining, again}, return_when=asyncio.FIRST_COMPLETED)
        again.cancel()
        if not draining.done():
            draining.cancel()
        cut = draining.result() if draining.done() else sum(each.is_busy for each in service.state.callers)
    return GatewayEnd(cut=cut, is_interrupted=stopping.is_interrupted)


def gateway_settings(ask: GatewayAsk) -> GatewaySettings:
    """UsageError where an address is none, a server is named twice, or a key is not there."""
    spec, plain = (tuple(concealed(base_of(url)) for url in urls) for urls in (ask.spec, ask.plain))
    for url in spec + plain:
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


def _reader_of(policy: Policy | None) -> Callable[[CallerRequest], RequestFeatures]:
    repeats, key = prompt_look(policy), secrets.token_bytes(SESSION_KEY_BYTES)

    def read(request: CallerRequest) -> RequestFeatures:
        return read_features(request.path, request.field_text(), request.body, repeats=repeats, key=key)

    return read


class _Stopping:
    """The first signal drains, the second ends it."""

    def __init__(self) -> None:
        self.asked, self.asked_again = asyncio.Event(), asyncio.Event()
        self.is_interrupted = False

    def heed(self, *, is_interrupt: bool) -> None:
        (self.asked_again if self.asked.is_set() else self.asked).set()
        self.is_interrupted = self.is_interrupted or is_interrupt


@contextmanager
def _heeding(stopping: _Stopping, service: GatewayService, read_anew: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    acts: dict[signal.Signals, Callable[[], None]] = {
        signal.SIGTERM: lambda: stopping.heed(is_interrupt=False),
        signal.SIGINT: lambda: stopping.heed(is_interrupt=True),
        signal.SIGHUP: read_anew,
        signal.SIGUSR1: lambda: service.switch(is_plain_only=True),
        signal.SIGUSR2: lambda: service.switch(is_plain_only=False),
    }
    for number, act in acts.items():
        loop.add_signal_handler(number, act)
    try:
        yield
    finally:
        for number in acts:
            loop.remove_signal_handler(number)
