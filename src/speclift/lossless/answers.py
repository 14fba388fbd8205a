"""Answers of a server as the gate compares them, and where two answers part.

A tie that other arithmetic broke the other way has a small margin in nats; a token the model would never say has a
large one. Only the first parting of a pair counts: behind it the two continue different texts.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from scipy import special

from speclift.core.units import Tokens
from speclift.lossless.gate import Hazard


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One token that the server could have said at a position, with its log-probability in nats."""

    data: bytes
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The token said at a position and the most likely ones there, itself among them."""

    data: bytes
    logprob: float
    choices: tuple[Alternative, ...]

    def margin_to(self, other: Alternative) -> float:
        return max(0.0, self.logprob - other.logprob)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer. `said` is empty where the server gives no log-probabilities, `ids` where it gives no ids."""

    case: str
    text: str
    finish_reason: str | None
    tokens: Tokens | None
    said: tuple[Said, ...] = ()
    ids: tuple[int, ...] = ()
    prompt_ids: tuple[int, ...] = ()
    drafted: Tokens | None = None
    accepted: Tokens | None = None
    # What the server answered instead, where it refused or broke off.
    error: str = ""

    @property
    def is_ok(self) -> bool:
        return not self.error

    @property
    def length(self) -> int:
        """Tokens as the server counts them; where it does not, words stand in."""
        return self.tokens if self.tokens is not None else max(1, len(self.text.split()))

    @property
    def seen(self) -> int:
        """Tokens that a comparison of texts sees: none of an empty one, whatever the server counted."""
        return self.length if self.text else 0


def aligned(answer: Answer) -> tuple[tuple[int, Said], ...]:
    """Each token with the byte at which it starts; empty where tokens and text do not fit together.

    A token of the end may stand behind the text: vLLM lists it, llama.cpp does not.
    """
    text, start, placed = answer.text.encode(), 0, []
    for token in answer.said:
        if start < len(text) and text[start : start + len(token.data)] != token.data:
            return ()
        placed.append((start, token))
        start += len(token.data) if start < len(text) else 0
    return tuple(placed) if start >= len(text) else ()


# Where two answers part

EXCERPT_CHARACTERS = 60
# Tokens that end an answer carry no text or a name in brackets.
_END_NAME = re.compile(rb"^(<[^<>\s]{1,40}>|\[[^\[\]\s]{1,40}\])?$")


class Kind(StrEnum):
    TOKEN = "token"
    # The answer ends where the reference goes on, and says that the model ended it.
    ENDED = "ended"
    # It goes on where the reference ended.
    LONGER = "longer"
    # It ends where the reference goes on although neither the model nor the cap ended it.
    TRUNCATED = "truncated"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    case: str
    kind: Kind
    # Tokens that agree before it; None where the server gave no tokens to count.
    position: int | None
    # Log-probability of the reference's token minus that of the other one, by the baseline; None: unknown.
    margin: float | None
    # True where the other token was not among those listed: the margin is at least this.
    is_at_least: bool
    # 1 is the baseline's most likely token.
    rank: int | None
    reference: str
    answer: str
    # The closest call before it at which the other answer may have taken another token of the same letters: `"_` for
    # `"` shows only at the letter after it, which the baseline would never say there. None: there was none.
    unseen_margin: float | None = None

    @property
    def closest(self) -> float | None:
        """The margin of the likelier reading; None where none is known."""
        margins = [margin for margin in (self.margin, self.unseen_margin) if margin is not None]
        return min(margins, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One pair: tokens that were seen to agree (with the one that did not), and where they part."""

    case: str
    tokens: float
    divergence: Divergence | None


def compare(reference: Answer, answer: Answer) -> Compared:
    if not answer.is_ok or not reference.is_ok:
        return Compared(case=reference.case, tokens=0.0, divergence=_refused(reference, answer))
    ours, theirs = reference.text.encode(), answer.text.encode()
    at = _first_difference(ours, theirs)
    placed = aligned(reference)
    if at is None:
        same_length = reference.tokens is None or answer.tokens in (None, reference.tokens)
        if same_length or reference.finish_reason == answer.finish_reason == "stop":
            return Compared(case=reference.case, tokens=float(reference.seen), divergence=None)
        at = len(ours)
    index, said = _token_at(placed, at)
    divergence = _divergence(reference, answer, at=at, index=index, said=said)
    seen = index + 1.0 if index is not None else reference.length * (at + 1) / (len(ours) + 1)
    return Compared(case=reference.case, tokens=max(1.0, seen), divergence=divergence)


def _divergence(
    reference: Answer, answer: Answer, *, at: int, index: int | None, said: Said | None
) -> Divergence:
    ours, theirs = reference.text.encode(), answer.text.encode()
    kind = Kind.TOKEN
    margin: float | None = None
    is_at_least, rank = False, None
    if at == len(ours) <= len(theirs):
        kind = Kind.LONGER
    elif at == len(theirs):
        kind = Kind.ENDED if answer.finish_reason == "stop" else Kind.TRUNCATED
        # Numerics choose another token; they cannot end an answer early without choosing the end.
        margin = math.inf if kind is Kind.TRUNCATED else None
    if said is not None and said.choices and kind is not Kind.TRUNCATED:
        start = at - _offset(reference, at)
        chosen = _chosen(said, theirs[start:], at - start, is_end=kind is Kind.ENDED)
        listed = sorted(said.choices, key=lambda choice: -choice.logprob)
        if chosen is None and kind is not Kind.LONGER:
            margin, is_at_least = said.margin_to(listed[-1]), True
        elif chosen is not None:
            margin, rank = said.margin_to(chosen), 1 + listed.index(chosen)
    return Divergence(
        case=reference.case,
        kind=kind,
        position=index,
        margin=margin,
        is_at_least=is_at_least,
        rank=rank,
        reference=_excerpt(ours, at),
        answer=_excerpt(theirs, at),
        unseen_margin=None if kind is Kind.TRUNCATED else _unseen_margin(reference, theirs, at),
    )


def _unseen_margin(reference: Answer, theirs: bytes, at: int) -> float | None:
    margins = [
        token.margin_to(other)
        for start, token in aligned(reference)
        if start + len(token.data) <= at
        for other in token.choices
        if other.data not in (b"", token.data) and theirs.startswith(other.data, start)
    ]
    return min(margins, default=None)


def _chosen(said: Said, rest: bytes, inside: int, *, is_end: bool) -> Alternative | None:
    """The one of the listed tokens that the other answer took; `inside` is how far into the token the two agree."""
    others = [choice for choice in said.choices if choice.data != said.data]
    if is_end and not inside:
        matching = [choice for choice in others if _END_NAME.match(choice.data)]
    else:
        named = [c for c in others if c.data and (rest.startswith(c.data) or c.data.startswith(rest))]
        # The token that reaches past the difference is the likelier reading than a shorter one before it.
        matching = [c for c in named if len(c.data) > inside] or named
    return max(matching, key=lambda choice: choice.logprob, default=None)


def _token_at(placed: tuple[tuple[int, Said], ...], at: int) -> tuple[int | None, Said | None]:
    for index, (start, token) in enumerate(placed):
        if start <= at < start + max(1, len(token.data)):
            return index, token
    return (len(placed), None) if placed else (None, None)


def _offset(reference: Answer, at: int) -> int:
    """How many bytes into its token the difference lies."""
    return next(
        (at - start for start, token in aligned(reference) if start <= at < start + max(1, len(token.data))),
        0,
    )


def _first_difference(ours: bytes, theirs: bytes) -> int | None:
    if ours == theirs:
        return None
    shorter = min(len(ours), len(theirs))
    return next((i for i in range(shorter) if ours[i] != theirs[i]), shorter)


def _refused(reference: Answer, answer: Answer) -> Divergence | None:
    """An answer that only one of the two got."""
    if reference.is_ok == answer.is_ok:
        return None
    return Divergence(
        case=reference.case,
        kind=Kind.REFUSED,
        position=None,
        margin=None,
        is_at_least=False,
        rank=None,
        reference=reference.error or reference.text[:EXCERPT_CHARACTERS],
        answer=answer.error or answer.text[:EXCERPT_CHARACTERS],
    )


def _excerpt(data: bytes, at: int) -> str:
    before = data[:at].decode("utf-8", "replace")[-EXCERPT_CHARACTERS // 2 :]
    return f"{before}⟦{data[at:].decode('utf-8', 'replace')[:EXCERPT_CHARACTERS]}⟧"


# How often


def hazard(pairs: Iterable[Compared]) -> Hazard:
    """A refusal is no divergence: nothing was said that could differ. A prompt that came out the same again is one
    observation, however often it was asked."""
    compared = list(dict.fromkeys(pairs))
    parted = [pair.divergence for pair in compared if pair.divergence is not None]
    return Hazard(
        events=sum(divergence.kind is not Kind.REFUSED for divergence in parted),
        tokens=sum(pair.tokens for pair in compared),
    )


def more_often(arm: Hazard, control: Hazard) -> float:
    """P of at least this many events falling on the arm if both rates were equal: given their sum, they are
    binomial with the arm's share of the exposure (Przyborowski and Wilenski 1940)."""
    total = arm.events + control.events
    if not total or not arm.tokens:
        return 1.0
    share = arm.tokens / (arm.tokens + control.tokens)
    return float(special.bdtrc(arm.events - 1, total, share))


def tokens_for_rate(detect: float, *, level: float = 0.95) -> int:
    """Tokens without any divergence after which a rate of `detect` is excluded at `level`."""
    return int(-(-Hazard(events=0, tokens=1.0).upper(level) // detect))


# Text that no working server writes: loops, word salad, bytes that are no text. Judged against the baseline's

# A loop: this share of an answer's words lies in repeats of its commonest four words. Poems and lists stay below.
LOOP_SHARE = 0.6
LOOP_WORDS = 4
WORDS_MIN = 20
# Word salad mixes scripts and breaks words: letters of another script than the answer's own, replacement
# characters, words with digits or signs inside.
SALAD_SHARE = 0.15
_WORD = re.compile(r"\S+")
# One letter on either side is enough: more of them would be tried again from each letter of a long word.
_BROKEN = re.compile(r"[^\W\d_][\d_#$%&*+/<=>@\\^|~]++[^\W\d_]")


def is_looping(text: str) -> bool:
    words = _WORD.findall(text.lower())
    if len(words) < WORDS_MIN:
        return False
    grams = Counter(tuple(words[i : i + LOOP_WORDS]) for i in range(len(words) - LOOP_WORDS + 1))
    repeated = sum(count for count in grams.values() if count > 2)
    return repeated / sum(grams.values()) >= LOOP_SHARE


def is_garbled(text: str) -> bool:
    words = _WORD.findall(text)
    if not words:
        return False
    scripts = Counter(_script(character) for character in text if character.isalpha())
    if not scripts:
        return text.count("\ufffd") / len(text) > SALAD_SHARE
    main = scripts.most_common(1)[0][0]
    odd = sum(_is_odd(word, main) for word in words)
    return odd / len(words) > SALAD_SHARE and odd > 2


def _is_odd(word: str, main: str) -> bool:
    letters = {_script(character) for character in word if character.isalpha()}
    return "\ufffd" in word or bool(letters - {main}) or _BROKEN.search(word) is not None


def _script(character: str) -> str:
    return unicodedata.name(character, "UNKNOWN").partition(" ")[0]
