"""What a judgement on one flag or key is, and how releases are read, ordered and said. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

# vLLM's (0, 32, 0); llama.cpp numbers its builds: b11549 is (11549,).
Release: TypeAlias = tuple[int, ...]


class Status(StrEnum):
    OK = "ok"
    RISKY = "risky"  # accepted, and likely not what was meant
    REMOVED = "removed"
    RENAMED = "renamed"
    DEAD = "dead"  # accepted, and read by nothing
    CONFLICT = "conflict"  # this value, or this combination, is refused
    UNKNOWN = "unknown"  # not known to this release: never was, or came later
    UNREAD = "unread"  # what stands here could not be read, so nothing was judged

    @property
    def is_error(self) -> bool:
        return self not in (Status.OK, Status.RISKY)


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFinding:
    """`flag` is spelt as the user spelt it; `replacement` is what to write instead, None where nothing is."""

    flag: str
    status: Status
    message: str
    replacement: str | None = None
    changed_in: str | None = None
    source: str = ""

    @property
    def is_error(self) -> bool:
        return self.status.is_error


def has_errors(findings: Iterable[LintFinding]) -> bool:
    return any(finding.is_error for finding in findings)


def dotted(release: Release) -> str:
    """0.8.3; b11549 for llama.cpp's builds."""
    if len(release) == 1:
        return f"b{release[0]}"
    return ".".join(str(part) for part in release)


# Longer than any name; to compare one of half a million characters with all of them takes minutes.
NAME_MAX = 100


def nearest(name: str, known: Iterable[str]) -> str | None:
    if len(name) > NAME_MAX:
        return None
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.75)
    return found[0] if found else None
