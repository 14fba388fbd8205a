"""Every error a user can meet, as one tree. The command line maps each branch to an exit code.

SpecliftError              base: catch this to catch everything raised on purpose
├── UsageError             exit 2: a wrong value, an unknown name, an unreadable prompt file
├── WillNotRun             exit 4: a server that its engine would refuse to start
└── OperatingError         exit 1: the request was right, the world was not
    ├── EngineError        a server did not start, died, hung or is not what was asked for
    ├── ModelError         a model file is missing, damaged or does not match its draft
    ├── StudyError         a study directory cannot be read, written, resumed or merged
    └── FleetError         a cluster or a node of it is missing, lost, busy or unlike the others
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

# vLLM names the process before every line: (EngineCore pid=12) ERROR 01-02 [core.py:1] Traceback ...
_PREFIX = re.compile(r"^(\([^)]{1,60}\) )?((ERROR|INFO|WARNING) [0-9:. -]{1,30}\[[^\]]{1,80}\] )?")
_PLACE = re.compile(r'^\s+File ".*", line \d+')
_CHAIN = re.compile(r"^(During handling of the above exception|The above exception was the direct cause)")


class SpecliftError(Exception):
    """Says what happened and what was seen; `hint` says what to do next."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(SpecliftError):
    """The command or its input is wrong; running it again unchanged cannot help."""


class WillNotRun(SpecliftError):
    """The engine would refuse the user's own command; which flags and why is in the message."""


class OperatingError(SpecliftError):
    """Something outside the command failed; the same command may work later or elsewhere."""


class EngineError(OperatingError):
    """A server did not start, died, hung, or runs without the speculation it was asked for."""

    def __init__(self, message: str, *, hint: str = "", log_tail: str = "") -> None:
        super().__init__(message, hint=hint)
        self.log_tail = without_tracebacks(log_tail)


class ModelError(OperatingError):
    """A model file is missing, damaged, or cannot be paired with its draft."""


class StudyError(OperatingError):
    """A study directory cannot be read, written, resumed or merged."""


class FleetError(OperatingError):
    """A cluster cannot be reached, or a node of it cannot take its part; the message names the node."""


def without_tracebacks(log: str) -> str:
    """An engine's own traceback as its last line; where it stands in the code of others helps nobody here."""
    lines: list[str] = []
    is_inside = False
    for line in log.splitlines():
        bare = _PREFIX.sub("", line)
        if "Traceback (most recent call last)" in bare or _PLACE.match(bare):
            is_inside = True
        elif _CHAIN.match(bare):
            # The error before was the cause of one that follows, which is the last line.
            while lines and not lines.pop().strip():
                continue
            is_inside = True
        elif is_inside and (bare.startswith((" ", "\t")) or not bare):
            continue
        elif bare or lines:
            is_inside = False
            lines.append(line)
    return "\n".join(lines).strip()


def unknown_name(*, what: str, seen: str, allowed: Iterable[str]) -> UsageError:
    """The error for a name outside a closed list, with the nearest match when there is one."""
    names = list(allowed)
    near = difflib.get_close_matches(seen, names, n=1, cutoff=0.5)
    nearest = f" Did you mean {near[0]!r}?" if near else ""
    return UsageError(f"unknown {what} {seen!r}.{nearest}", hint=f"allowed: {', '.join(names)}")
