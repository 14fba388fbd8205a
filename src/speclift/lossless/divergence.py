"""Where two answers part, and how close a call it was for the reference: the margin in nats.

A tie that other arithmetic broke the other way has a small margin; a token the model would never say has a
large one. Only the first parting of a pair counts: behind it the two continue different texts.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum

from speclift.lossless.answers import Alternative, Answer, Said, aligned

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
        known = [margin for margin in (self.margin, self.unseen_margin) if margin is not None]
        return min(known, default=None)


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
        found = _chosen(said, theirs[start:], at - start, is_end=kind is Kind.ENDED)
        listed = sorted(said.choices, key=lambda choice: -choice.logprob)
        if found is None and kind is not Kind.LONGER:
            margin, is_at_least = said.margin_to(listed[-1]), True
        elif found is not None:
            margin, rank = said.margin_to(found), 1 + listed.index(found)
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
        said.margin_to(other)
        for start, said in aligned(reference)
        if start + len(said.data) <= at
        for other in said.choices
        if other.data not in (b"", said.data) and theirs.startswith(other.data, start)
    ]
    return min(margins, default=None)


def _chosen(said: Said, rest: bytes, inside: int, *, is_end: bool) -> Alternative | None:
    """Which of the listed tokens the other answer took; `inside` is how far into the token the two agree."""
    others = [choice for choice in said.choices if choice.data != said.data]
    if is_end and not inside:
        matching = [choice for choice in others if _END_NAME.match(choice.data)]
    else:
        named = [c for c in others if c.data and (rest.startswith(c.data) or c.data.startswith(rest))]
        # The token that reaches past the difference is the likelier reading than a shorter one before it.
        matching = [c for c in named if len(c.data) > inside] or named
    return max(matching, key=lambda choice: choice.logprob, default=None)


def _token_at(placed: tuple[tuple[int, Said], ...], at: int) -> tuple[int | None, Said | None]:
    for index, (start, said) in enumerate(placed):
        if start <= at < start + max(1, len(said.data)):
            return index, said
    return (len(placed), None) if placed else (None, None)


def _offset(reference: Answer, at: int) -> int:
    """How many bytes into its token the difference lies."""
    return next(
        (at - start for start, said in aligned(reference) if start <= at < start + max(1, len(said.data))), 0
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
