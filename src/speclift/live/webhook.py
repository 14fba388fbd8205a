"""Documents posted to whoever wants to know of a change; beside the watch, which never waits for it."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class _Delivery:
    body: bytes
    number: str
    until_s: Seconds


class Webhook:
    def __init__(
        self,
        url: str,
        key: str | None,
        *,
        say: Callable[[str], None],
        waits_s: tuple[Seconds, ...] = WAITS_S,
    ) -> None:
        """UsageError where `url` is no address; `say` hears of what could not be delivered."""
        self._url, self._key = concealed(url, what="--webhook", shows_path=False), key
        self._say, self._waits_s = say, waits_s
        address = address_of(self._url)
        # The whole of a path may be a secret (chat services have it so): only the host is shown.
        for part in address.path.split("/"):
            remember(part)
        self.place = f"{address.scheme}://{address.host_field}/…"
        self._pending: asyncio.Queue[_Delivery] = asyncio.Queue()

    def post(self, body: bytes) -> None:
        """Queues a document and returns at once."""
        if self._pending.qsize() >= PENDING_MAX:
            self._pending.get_nowait()
            self._say(f"webhook {self.place}: too many documents wait; the oldest was dropped")
        delivery = _Delivery(body, secrets.token_hex(8), time.monotonic() + DELIVERY_LIMIT_S)
        self._pending.put_nowait(delivery)

    async def run(self) -> None:
        """Delivers documents until it is cancelled."""
        while True:
            delivery = await self._pending.get()
            try:
                await self._deliver(delivery)
            except asyncio.CancelledError:
                self._pending.put_nowait(delivery)  # for `drain`
                raise

    async def drain(self, *, limit_s: Seconds) -> None:
        """Delivers the documents that are left at the end, each tried once."""
        try:
            async with asyncio.timeout(limit_s):
                while not self._pending.empty():
                    _, why = await self._try(self._pending.get_nowait())
                    if why:
                        self._say(f"webhook {self.place}: a change was not delivered: {why}")
        except TimeoutError:
            self._say(f"webhook {self.place}: {self._pending.qsize() + 1} documents were not delivered")

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
            self._say(f"webhook {self.place}: a change was not delivered: {why}")

    async def _try(self, delivery: _Delivery) -> tuple[bool, str]:
        """True if there is nothing left to try, and what went wrong."""
        fields = {DELIVERY: delivery.number}
        if self._key is not None:
            fields[SIGNATURE] = signature(delivery.body, self._key)
        try:
            status = await KeptConnection().status_of_post(
                address_of(self._url),
                delivery.body,
                fields=fields,
                limit_s=TRY_LIMIT_S,
                place=self.place,
            )
        except EngineError as error:
            return False, str(error)
        if 200 <= status < 300:
            return True, ""
        return status < 500 and status not in TRY_AGAIN, f"it answered {status}"


def signature(body: bytes, key: str) -> str:
    return f"sha256={hmac.new(key.encode(), body, hashlib.sha256).hexdigest()}"
