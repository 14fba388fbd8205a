"""docker run and its like: which of its words is the image, and what is started in it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

CONTAINERS = frozenset({"docker", "podman", "nerdctl"})
_STARTING = frozenset({"run", "create"})
# Options that take no value; every other one takes the next word unless it has an equals sign.
_SWITCHES = re.compile(
    r"-[ditPq]+|--(?:rm|detach|interactive|tty|privileged|init|publish-all|read-only|no-healthcheck|quiet"
    r"|oom-kill-disable|sig-proxy|disable-content-trust|replace)"
)
ENTRY_POINT = "--entrypoint"


def image_place(words: Sequence[str]) -> int | None:
    """Where the image stands in `docker run …`; None where this is none, or has no image."""
    at = 1 if words and words[0] in ("sudo", "nohup", "exec") else 0
    if len(words) < at + 3 or words[at] not in CONTAINERS or words[at + 1] not in _STARTING:
        return None
    at += 2
    while at < len(words) and words[at].startswith("-"):
        takes_next = "=" not in words[at] and not _SWITCHES.fullmatch(words[at])
        at += 2 if takes_next else 1
    return at if at < len(words) else None


def without_entry_point(wrapper: Sequence[str]) -> tuple[list[str], list[str]]:
    """docker run … IMAGE without --entrypoint, and what that said."""
    kept: list[str] = []
    entry_point: list[str] = []
    is_next = False
    for word in wrapper:
        name, equals, value = word.partition("=")
        if is_next:
            entry_point, is_next = [word], False
        elif name == ENTRY_POINT:
            entry_point, is_next = [value] if equals else [], not equals
        else:
            kept.append(word)
    return kept, entry_point
