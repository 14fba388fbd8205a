"""A fake server that corrupts some of its answers, and only where it is told to: above so many streams, after so many
requests, with tools, on one launch, when a prompt joins. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from speclift.testing.fake_words import AskedWords, FakeWords, tokens_of

LEAKED = "<|im_end|>"
# More than any server rounds.
TOKENS_TOO_MANY = 17
SPAN = 8


class Corruption(StrEnum):
    LEAKED_TOKEN = "leaked-token"
    TEXT_AFTER_STOP = "text-after-stop"
    CROSS_TALK = "cross-talk"
    BUDGET_IGNORED = "budget-ignored"
    INVALID_JSON = "invalid-json"
    TRUNCATED = "truncated"
    BROKEN_OFF = "broken-off"
    REPEATED_SPAN = "repeated-span"
    BROKEN_TEXT = "broken-text"
    BANNED_TOKEN = "banned-token"
    OTHER_WORDS = "other-words"


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What goes on at the server when half of an answer is written."""

    streams: int
    # Requests that this process was asked before, and those that came while this one was answered.
    before: int
    joined: int
    # The prompt of another request, where there was one.
    other: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrupted:
    """The words of an answer gone wrong from its middle on; token by token as before, so that its steps stay."""

    words: FakeWords
    tokens_extra: int = 0
    # False: the answer ends without a reason.
    has_reason: bool = True


def corrupt(
    kind: Corruption, words: FakeWords, asked: AskedWords, prompt: str, *, middle: int, other: str
) -> Corrupted | None:
    """None where this answer cannot go wrong that way."""
    texts = list(words.texts)
    middle = min(middle, len(texts) - 1)
    match kind:
        case Corruption.LEAKED_TOKEN:
            texts[middle] += LEAKED
        case Corruption.CROSS_TALK:
            strange = _telling_words(other, prompt)
            if not strange:
                return None
            texts[middle] += f" {strange}"
        case Corruption.REPEATED_SPAN:
            texts[middle] = "".join(texts[max(words.thoughts, middle - SPAN) : middle + 1]) * 2
        case Corruption.BROKEN_TEXT:
            texts[middle] += "\ufffd"
        case Corruption.OTHER_WORDS:
            texts[middle] = " instead"
        case _:
            return _at_the_end(kind, words, asked, prompt, middle=middle)
    return Corrupted(words=replace(words, texts=tuple(texts)))


def _at_the_end(
    kind: Corruption, words: FakeWords, asked: AskedWords, prompt: str, *, middle: int
) -> Corrupted | None:
    """What goes wrong where an answer should end."""
    texts = list(words.texts)
    match kind:
        case Corruption.TEXT_AFTER_STOP:
            stop = next((stop for stop in asked.stops if stop in prompt), "")
            if not stop or words.finish_reason != "stop":
                return None
            texts[-1] += f"{stop} and so on"
        case Corruption.BUDGET_IGNORED:
            if words.finish_reason != "length":
                return None
            texts[-1] += " more" * TOKENS_TOO_MANY
            return Corrupted(words=replace(words, texts=tuple(texts)), tokens_extra=TOKENS_TOO_MANY)
        case Corruption.INVALID_JSON:
            if asked.schema is None and not words.tool:
                return None
            texts[-1] = texts[-1].rstrip("}]\"'")
        case Corruption.BANNED_TOKEN:
            if not asked.banned:
                return None
            texts[-1] += banned_text(asked.banned[0])
        case Corruption.BROKEN_OFF if words.finish_reason != "stop":
            # What the limit ends may end anywhere.
            return None
        case _:
            texts[middle:] = [""] * (len(texts) - middle)
            has_reason = kind is Corruption.BROKEN_OFF
            return Corrupted(words=replace(words, texts=tuple(texts)), has_reason=has_reason)
    return Corrupted(words=replace(words, texts=tuple(texts)))


# The fake's words have ids of their own below this; single characters come after them.
CHARACTER_IDS = 1000


def character_id(character: str) -> int:
    return CHARACTER_IDS + ord(character)


def banned_text(token_id: int) -> str:
    return chr(token_id - CHARACTER_IDS) if token_id >= CHARACTER_IDS else " word"


def _telling_words(other: str, own: str) -> str:
    """Of another prompt: its codes where it has some, else its last words."""
    codes = [word for word in re.findall(r"[a-z]+\d+[a-z]+", other) if word not in own]
    return " ".join(codes[-1:]) or "".join(tokens_of(other)[-SPAN:]).strip()


def kinds_of(text: str) -> Sequence[Corruption]:
    """From `leaked-token/cross-talk`; ValueError where one is unknown."""
    return [Corruption(word) for word in text.split("/") if word]
