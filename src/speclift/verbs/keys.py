"""Keys that stand in the environment: never in a command line, where everybody on the machine reads them."""

from __future__ import annotations

import os

from speclift.core.address import usable_key
from speclift.core.errors import UsageError

TOKEN_CHARACTERS_MIN = 16


def key_of(variable: str, flag: str) -> str:
    secret = os.environ.get(variable)
    if not secret:
        raise UsageError(f"{flag} names {variable}, which is not set", hint=f"export {variable}=...")
    return usable_key(secret, where=variable)


def token_of(variable: str) -> str:
    """What callers have to know."""
    token = key_of(variable, "--token-env")
    if len(token) < TOKEN_CHARACTERS_MIN:
        raise UsageError(
            f"the token in {variable} has fewer than {TOKEN_CHARACTERS_MIN} characters and can be guessed",
            hint=f"export {variable}=$(openssl rand -hex 24)",
        )
    return token
