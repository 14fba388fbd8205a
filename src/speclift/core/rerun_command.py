"""A command of ours, changed: the same flags with more prompts, more launches or fewer segments."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from speclift.core.address import HIDDEN

# The verb that says what to do with what each measured.
VERBS = {"decide": "decide", "tune": "tune", "measure": "decide", "verify": "verify"}
# Where results went and whether anything was launched is no part of what was measured.
DROPPED_SWITCHES = ("--json", "--resume", "--dry-run")
DROPPED = ("--study", "--out", "--markdown", "--junit")
# Without one of these a study is the quick look, which chooses its own traffic.
TRAFFIC = ("--prompts", "--segment", "--requests", "--max-tokens", "--budget")
# What names the arms of a study.
ARMS = ("--method", "--k", "--draft")
# Its value may look like a flag of ours.
VERBATIM = "--engine-arg"
END_OF_FLAGS = "--"


class CommandLine:
    """A command of ours, word by word: flags with their values, and what stands behind `--`."""

    def __init__(self, argv: Sequence[str]) -> None:
        words = list(argv)
        end = words.index(END_OF_FLAGS) if END_OF_FLAGS in words else len(words)
        self.verb = VERBS.get(words[0]) if words else None
        self._flags = _flags(words[1:end])
        self._rest = words[end:]

    @property
    def can_be_repeated(self) -> bool:
        """Not where no command line was, nor where a secret was taken out of it."""
        words = [word for flag in self._flags for word in flag] + self._rest
        return self.verb is not None and not any(HIDDEN in word for word in words)

    def has(self, *names: str) -> bool:
        return any(flag[0] in names for flag in self._flags)

    def value(self, name: str) -> str | None:
        return next((flag[1] for flag in self._flags if flag[0] == name and len(flag) > 1), None)

    def changed(
        self, values: Mapping[str, Sequence[str]], *, without: Sequence[str] = (), verb: str | None = None
    ) -> str:
        """With these values instead of its own; a flag with several comes once for each."""
        gone = {*values, *without, *DROPPED, *DROPPED_SWITCHES}
        kept = [word for flag in self._flags if flag[0] not in gone for word in flag]
        new = [word for name, each in values.items() for value in each for word in (name, value)]
        return shlex.join(["speclift", verb or self.verb or "decide", *kept, *new, *self._rest])


def _flags(words: Sequence[str]) -> list[tuple[str, ...]]:
    """Each flag with its value, `--flag=value` taken apart. A word that starts no flag belongs to the one before."""
    flags: list[tuple[str, ...]] = []
    for word in words:
        takes_value = bool(flags) and len(flags[-1]) == 1 and flags[-1][0] not in DROPPED_SWITCHES
        is_foreign = takes_value and flags[-1][0] == VERBATIM
        if word.startswith("--") and not is_foreign:
            name, equals, value = word.partition("=")
            flags.append((name, value) if equals else (name,))
        elif takes_value:
            flags[-1] = (*flags[-1], word)
        else:
            flags.append((word,))
    return flags
