"""Documents posted to whoever wants to know of a change; beside the watch, which never waits for it."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from speclift.core.address import address_of, concealed, remember
from speclift.core.errors import EngineError
from speclift.core.units import Seconds
from speclift.http.client import KeptConnection

TRY_LIMIT_S = 10.0
WAITS_S = (1.0, 4.0, 15.0, 60.0)
# From the change on; later it is no news.
DELIVERY_LIMIT_S = 300.0
# Of all servers; the oldest go where nobody takes them.
PENDING_MAX = 100
SIGNATURE, DELIVERY = "X-Speclift-Signature", "X-Speclift-Delivery"
# The request was fine and the moment was not.
TRY_AGAIN = frozenset({408, 425, 429})


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookAddress:
    """Where documents go. The whole of a path may be a secret (chat services have it so): only the host is shown."""

    url: str = field(repr=False)
    place: str
    key: str | None = field(default=None, repr=False)


def webhook_address(url: str, key: str | None) -> WebhookAddress:
    """UsageError where it is no address."""
    public = concealed(url, what="--webhook", shows_path=False)
    address = address_of(public)
    for part in address.path.split("/"):
        remember(part)
    return WebhookAddress(url=public, place=f"{address.scheme}://{address.host_field}/…", key=key)


@dataclass(frozen=True, slots=True)
class _Delivery:
    body: bytes
    number: str
    until_s: Seconds


class Webhook:
    def __init__(
        self, address: WebhookAddress, *, say: Callable[[str], None], waits_s: tuple[Seconds, ...] = WAITS_S
    ) -> None:
        """`say` hears of what could not be delivered."""
        self._address, self._say, self._waits_s = address, say, waits_s
        self._pending: asyncio.Queue[_Delivery] = asyncio.Queue()

    def post(self, body: bytes) -> None:
        """At once; it is on its way when there is time."""
        if self._pending.qsize() >= PENDING_MAX:
            self._pending.get_nowait()
            self._say(f"webhook {self._address.place}: too many documents wait; the oldest was dropped")
        delivery = _Delivery(body, secrets.token_hex(8), time.monotonic() + DELIVERY_LIMIT_S)
        self._pending.put_nowait(delivery)

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            delivery = await self._pending.get()
            try:
                await self._deliver(delivery)
            except asyncio.CancelledError:
                self._pending.put_nowait(delivery)  # for `drain`
                raise

    async def drain(self, *, limit_s: Seconds) -> None:
        """What is left at the end, as far as it goes at once."""
        try:
            async with asyncio.timeout(limit_s):
                while not self._pending.empty():
                    _, why = await self._try(self._pending.get_nowait())
                    if why:
                        self._say(f"webhook {self._address.place}: a change was not delivered: {why}")
        except TimeoutError:
            self._say(
                f"webhook {self._address.place}: {self._pending.qsize() + 1} documents were not delivered"
            )

    async def _deliver(self, delivery: _Delivery) -> None:
        why = ""
        for wait_s in (*self._waits_s, None):
            is_final, why = await self._try(delivery)
            if is_final:
                break
            if wait_s is None or time.monotonic() + wait_s > delivery.until_s:
                break
            await asyncio.sleep(wait_s)
        if why:
            self._say(f"webhook {self._address.place}: a change was not delivered: {why}")

    async def _try(self, delivery: _Delivery) -> tuple[bool, str]:
        """Whether there is nothing left to try, and what went wrong."""
        fields = {DELIVERY: delivery.number}
        if self._address.key is not None:
            fields[SIGNATURE] = signature(delivery.body, self._address.key)
        try:
            status = await KeptConnection().status_of_post(
                address_of(self._address.url),
                delivery.body,
                fields=fields,
                limit_s=TRY_LIMIT_S,
                place=self._address.place,
            )
        except EngineError as error:
            return False, str(error)
        if 200 <= status < 300:
            return True, ""
        return status < 500 and status not in TRY_AGAIN, f"it answered {status}"


def signature(body: bytes, key: str) -> str:
    return f"sha256={hmac.new(key.encode(), body, hashlib.sha256).hexdigest()}"
