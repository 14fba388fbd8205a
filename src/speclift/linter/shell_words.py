"""Words back into shell source: each yields exactly itself, but for what a shell was to fill in all along. Pure."""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

# Raw in a terminal they move the cursor, hide or reorder what follows; as escapes they are the same word.
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
_HARMLESS = "\n\t\u200d"
# A long command has some hundred; no more are looked at, so that reading stays linear.
WORDS_MAX = 4_000
_LIVE_IN_QUOTES = re.compile(r'["\\$`]')


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansions:
    """What of a command only a shell knows: words that hold some of it, as they were written, and the pieces."""

    whole: Mapping[str, str] = field(default_factory=dict)
    pieces: tuple[str, ...] = ()

    def holds(self, text: str) -> bool:
        return text in self.whole or any(piece in text for piece in self.pieces)

    def in_order(self) -> tuple[str, ...]:
        """Longest first, so that $MODEL_PATH is not taken for $MODEL."""
        return tuple(sorted(self.pieces, key=len, reverse=True))


NOTHING = Expansions()


def join_words(words: Iterable[str], expansions: Expansions = NOTHING) -> str:
    return " ".join(quote(word, expansions) for word in words)


def quote(word: str, expansions: Expansions = NOTHING) -> str:
    if word in expansions.whole:
        return expansions.whole[word]
    if expansions.pieces and expansions.holds(word):
        return _with_live_pieces(word, expansions.in_order())
    return _escaped(word) if any(map(is_hidden, word)) else shlex.quote(word)


def _with_live_pieces(word: str, pieces: Sequence[str]) -> str:
    """In double quotes, where a shell fills in the pieces and nothing else."""
    live = re.compile("|".join(map(re.escape, pieces)))
    parts, at = [], 0
    for match in live.finditer(word):
        parts += [_inert(word[at : match.start()]), match[0]]
        at = match.end()
    return f'"{"".join([*parts, _inert(word[at:])])}"'


def _inert(text: str) -> str:
    return _LIVE_IN_QUOTES.sub(lambda match: f"\\{match[0]}", text)


def is_hidden(character: str) -> bool:
    return character not in _HARMLESS and unicodedata.category(character) in _HIDDEN


def _escaped(word: str) -> str:
    """$'…', in which bash, zsh and ksh read escapes."""
    shown = (_escape(character) for character in word)
    return f"$'{''.join(shown)}'"


def _escape(character: str) -> str:
    if character in "'\\":
        return f"\\{character}"
    if not is_hidden(character):
        return character
    # A byte that is no UTF-8 reaches a program's arguments as one of these surrogates.
    is_byte = "\udc80" <= character <= "\udcff"
    return "".join(
        f"\\x{byte:02x}"
        for byte in character.encode("utf-8", "surrogateescape" if is_byte else "surrogatepass")
    )
