"""Shell source into words and back, without a shell: quoting, continuations, operators. Nothing is executed. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from speclift.core.errors import UsageError

_OPERATORS = ";&|<>()"
# Blanks after the backslash are a slip of the paste that a shell would not forgive.
_CONTINUATION = re.compile(r"[ \t]*(?:\\|\^|`)[ \t]*\r?\n[ \t]*")
_PROMPT = re.compile(r"^\s*\$\s+(?=\S)")
# A variable the user's shell is to fill in, and nothing that could run a command.
_VARIABLES = re.compile(
    r"(?:[\w@%+=:,./-]|\$\w+|\$\{\w+\})*\$(?:\w+|\{\w+\})(?:[\w@%+=:,./-]|\$\w+|\$\{\w+\})*"
)


def split_commands(text: str) -> list[list[str]]:
    """Every simple command of the text as its words; redirections and comments are left out."""
    return [command for line in _logical_lines(text) for command in _simple_commands(line)]


def _logical_lines(text: str) -> list[str]:
    """Lines joined where a backslash (or cmd's ^, PowerShell's `) or an open quote says so."""
    found: list[str] = []
    pending = ""
    for line in _CONTINUATION.sub(" ", text).splitlines():
        if not pending and line.lstrip().startswith("#"):
            continue
        pending = f"{pending}\n{line}" if pending else _PROMPT.sub("", line)
        if not _is_open(pending):
            found.append(pending)
            pending = ""
    return [line for line in (*found, pending) if line.strip()]


def _is_open(line: str) -> bool:
    try:
        shlex.split(line)
    except ValueError:
        return True
    return False


def _simple_commands(source: str) -> list[list[str]]:
    lexer = shlex.shlex(source, posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError as error:
        raise UsageError(
            f"this is no shell command: {str(error).lower()}", hint="a quote is opened and never closed"
        ) from None
    commands: list[list[str]] = [[]]
    is_target = False
    for word in words:
        if word and set(word) <= set(_OPERATORS):
            if "<" in word or ">" in word:
                is_target = True
                if commands[-1] and commands[-1][-1] in ("0", "1", "2"):
                    commands[-1].pop()  # of 2>&1
            else:
                is_target = False
                commands.append([])
        elif is_target:
            is_target = False
        else:
            commands[-1].append(word)
    return [command for command in commands if command]


def join_words(words: Sequence[str], *, expands_variables: bool = False) -> str:
    """Words as shell source that yields exactly these words; plain variables stay variables where asked."""
    return " ".join(quote(word, expands_variables=expands_variables) for word in words)


def quote(word: str, *, expands_variables: bool = False) -> str:
    if expands_variables and _VARIABLES.fullmatch(word):
        return f'"{word}"'
    return shlex.quote(word)
