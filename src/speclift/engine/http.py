"""Small blocking requests to a server about itself. Measured traffic never goes through here."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from speclift.core.errors import EngineError

LIMIT_S = 120.0
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def fetch(
    url: str, *, data: bytes | None = None, api_key: str | None = None, limit_s: float = LIMIT_S
) -> str:
    """The body of a 200 answer; EngineError with what was seen otherwise."""
    headers = {"Content-Type": "application/json"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    request = urllib.request.Request(url, data=data, headers=headers)
    # An engine on this machine is never behind the user's proxy.
    is_local = urllib.parse.urlsplit(url).hostname in LOOPBACK
    opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if is_local else []))
    try:
        with opener.open(request, timeout=limit_s) as response:
            body: bytes = response.read()
    except urllib.error.HTTPError as error:
        text = error.read().decode("utf-8", "replace")[:300]
        raise EngineError(f"{url} answered {error.code}: {text}") from error
    except (urllib.error.URLError, OSError, ValueError, http.client.HTTPException) as error:
        is_untrusted = "CERTIFICATE_VERIFY_FAILED" in str(error)
        hint = "SSL_CERT_FILE names a file of certificates to trust" if is_untrusted else ""
        raise EngineError(f"{url} did not answer: {error}", hint=hint) from error
    return body.decode("utf-8", "replace")


def post_json(url: str, body: Mapping[str, Any], *, api_key: str | None = None) -> Any:
    text = fetch(url, data=json.dumps(body).encode(), api_key=api_key)
    try:
        return json.loads(text)
    except ValueError as error:
        raise EngineError(f"{url} answered with something that is not JSON: {text[:120]!r}") from error
