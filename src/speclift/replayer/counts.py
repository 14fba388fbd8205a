"""What a replay counts per answer: where n-grams stood before, and the walk from offers to counts.

A *context* is named by the index of the token that comes next. The first token of an answer is the prefill's;
decode steps start at the contexts after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from speclift.core.units import Tokens

Ints = NDArray[np.int64]

# Draft budget of an answer that nothing but its own end limits.
UNLIMITED = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedAnswer:
    """One logged request as token ids. `budget` is the most tokens it could have had (max_tokens)."""

    prompt: Ints
    response: Ints
    segment: str
    budget: Tokens = UNLIMITED

    @property
    def tokens(self) -> Tokens:
        return len(self.prompt) + len(self.response)

    @property
    def prompt_hash(self) -> int:
        """The same for answers to the same prompt; a log without prompts has as many as it has different answers."""
        return crc32((self.prompt if len(self.prompt) else self.response).tobytes())


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Prompt and response of every answer, one after the other; all arrays but `tokens` and `owner` per answer."""

    tokens: Ints
    owner: Ints
    start: Ints
    response_start: Ints
    end: Ints
    budget: Ints

    @property
    def answers(self) -> int:
        return len(self.start)

    @property
    def decoded(self) -> Ints:
        """Tokens that decode steps had to yield: all but the first."""
        return np.asarray(np.maximum(self.end - self.response_start - 1, 0))

    def contexts(self) -> Ints:
        """Every place where a decode step may begin."""
        index = np.arange(len(self.tokens))
        return np.asarray(index[index > self.response_start[self.owner]])

    def room(self, contexts: Ints) -> Ints:
        """Drafted tokens the answer's budget leaves at each context, one kept for the target's own token."""
        owner = self.owner[contexts]
        return np.asarray(self.budget[owner] - (contexts - self.response_start[owner]) - 1)


def batch_of(answers: Sequence[LoggedAnswer]) -> Batch:
    lengths = np.array([answer.tokens for answer in answers], dtype=np.int64)
    end = np.cumsum(lengths)
    start = end - lengths
    parts = [part for answer in answers for part in (answer.prompt, answer.response)]
    return Batch(
        tokens=np.concatenate(parts).astype(np.int64, copy=False) if parts else np.zeros(0, dtype=np.int64),
        owner=np.repeat(np.arange(len(answers)), lengths),
        start=start,
        response_start=start + np.array([len(answer.prompt) for answer in answers], dtype=np.int64),
        end=end,
        budget=np.array([answer.budget for answer in answers], dtype=np.int64),
    )


# Odd, with their bits well spread: the golden ratio of 2^64 and its next odd multiples.
_MULTIPLIER = 0x9E3779B97F4A7C15
NONE = -1
# A batch of 2^18 tokens has 46 bits of hash left: one in two thousand meets a collision, and none two.
ATTEMPTS_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """For every n-gram by its first index: where it stood first and where it stood last before; -1 nowhere."""

    first: Ints
    previous: Ints


def matches(batch: Batch, n: int) -> Matches:
    size = len(batch.tokens)
    first, previous = np.full(size, NONE), np.full(size, NONE)
    index = np.arange(max(size - n + 1, 0))
    places = index[index + n <= batch.end[batch.owner[: len(index)]]]
    if len(places) == 0:
        return Matches(first=first, previous=previous)
    order, is_same = _grouped(batch, places, n)
    previous[order[1:]] = np.where(is_same, order[:-1], NONE)
    leader = np.maximum.accumulate(np.where(np.append(False, is_same), 0, np.arange(len(order))))
    first[order] = np.where(order[leader] == order, NONE, order[leader])
    return Matches(first=first, previous=previous)


def _grouped(batch: Batch, places: Ints, n: int) -> tuple[Ints, NDArray[np.bool_]]:
    """Places so ordered that equal n-grams are neighbours, and which neighbours are equal."""
    place_bits = len(batch.tokens).bit_length()
    for attempt in range(1, ATTEMPTS_MAX + 1):
        words = _hashes(batch, places, n, attempt) >> np.uint64(place_bits) << np.uint64(place_bits)
        words |= places.astype(np.uint64)
        words.sort()
        order = (words & np.uint64((1 << place_bits) - 1)).astype(np.int64)
        hashes = words >> np.uint64(place_bits)
        is_same = hashes[1:] == hashes[:-1]
        left, right = order[:-1][is_same], order[1:][is_same]
        equal = batch.owner[left] == batch.owner[right]
        for offset in range(n):
            equal &= batch.tokens[left + offset] == batch.tokens[right + offset]
        if equal.all():
            return order, is_same
    raise AssertionError(f"n-grams still collide after {ATTEMPTS_MAX} hashes")


def _hashes(batch: Batch, places: Ints, n: int, attempt: int) -> NDArray[np.uint64]:
    multiplier = np.uint64((_MULTIPLIER * (2 * attempt - 1)) & 0xFFFFFFFFFFFFFFFF)
    tokens = batch.tokens.astype(np.uint64)
    hashes = (batch.owner[places].astype(np.uint64) + np.uint64(1)) * multiplier
    hashes ^= hashes >> np.uint64(29)
    for offset in range(n):
        hashes = (hashes + tokens[places + offset] + np.uint64(1)) * multiplier
        hashes ^= hashes >> np.uint64(29)
    return np.asarray(hashes * multiplier)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """The contexts at which something is drafted, in order: how much, and how much of it the answer confirms."""

    contexts: Ints
    drafted: Ints
    accepted: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Per answer, in the order of the batch. `decoded` tokens came from `steps`, `drafting` of which drafted."""

    decoded: Ints
    steps: Ints
    drafting: Ints
    drafted: Ints
    accepted: Ints


def offers_from(batch: Batch, contexts: Ints, source: Ints, drafted: Ints) -> Offers:
    """Of contexts that each copy `drafted` tokens from `source` on."""
    accepted = confirmed(batch, contexts, source, drafted)
    return Offers(contexts=contexts, drafted=drafted, accepted=accepted)


def confirmed(batch: Batch, contexts: Ints, source: Ints, drafted: Ints) -> Ints:
    """How many of the drafted tokens are what the answer really went on with."""
    tokens = batch.tokens
    limit = np.minimum(drafted, batch.end[batch.owner[contexts]] - contexts)
    accepted = np.zeros(len(contexts), dtype=np.int64)
    alive = np.flatnonzero(limit > 0)
    depth = 0
    while len(alive):
        alive = alive[tokens[source[alive] + depth] == tokens[contexts[alive] + depth]]
        depth += 1
        accepted[alive] = depth
        alive = alive[limit[alive] > depth]
    return accepted


def walk(batch: Batch, offers: Offers, k: int) -> Counts:
    """The decode steps of every answer at one k. An offer of nothing accepted costs a draft and no detour."""
    taken = np.minimum(offers.accepted, k)
    hits = np.flatnonzero(taken)
    visited = hits[_visited(offers.contexts[hits].tolist(), taken[hits].tolist())]
    at, took = offers.contexts[visited], taken[visited]
    owner = batch.owner[at]
    accepted = _sum(owner, took, batch.answers)
    # The answer ended inside a draft: that step had no token of the target's own left to add.
    cut = _sum(owner, (at + took == batch.end[owner]).astype(np.int64), batch.answers)
    offered = batch.owner[offers.contexts]
    lengths = np.minimum(offers.drafted, k)
    drafting_before, drafted_before = _running(np.ones_like(lengths)), _running(lengths)
    # Offers at contexts inside a step were never asked for.
    inside = np.searchsorted(offers.contexts, at + took, side="right")
    passed_drafting = drafting_before[inside] - drafting_before[visited + 1]
    passed_drafted = drafted_before[inside] - drafted_before[visited + 1]
    return Counts(
        decoded=batch.decoded,
        steps=batch.decoded - accepted + cut,
        drafting=np.bincount(offered, minlength=batch.answers) - _sum(owner, passed_drafting, batch.answers),
        drafted=_sum(offered, lengths, batch.answers) - _sum(owner, passed_drafted, batch.answers),
        accepted=accepted,
    )


def _visited(contexts: list[int], taken: list[int]) -> Ints:
    """Which of the contexts with something to take a walk really stops at."""
    reached = -1
    stops = []
    for index, (context, take) in enumerate(zip(contexts, taken, strict=True)):
        if context > reached:
            stops.append(index)
            reached = context + take
    return np.array(stops, dtype=np.int64)


def _running(values: Ints) -> Ints:
    """Sum of everything before each place, and of all at the end."""
    return np.concatenate(([0], np.cumsum(values)))


def _sum(owner: Ints, values: Ints, answers: int) -> Ints:
    # bincount adds floats; counts below 2^53 stay exact.
    return np.bincount(owner, weights=values, minlength=answers).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Prompt and response as one list. A drafter may look at tokens[:context] and no further."""

    tokens: list[int]
    prompt_length: Tokens


class Drafter(Protocol):
    def begin(self, text: Text) -> None:
        """The prompt has been read; nothing is generated yet."""

    def draft(self, context: int) -> Sequence[int]: ...

    def accepted(self, count: int) -> None:
        """Called after a step that verified a draft, and only then."""


def replay_stepwise(drafter: Drafter, answers: Sequence[LoggedAnswer]) -> Counts:
    rows = [_replay(drafter, answer) for answer in answers]
    decoded, steps, drafting, drafted, accepted = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    return Counts(decoded=decoded, steps=steps, drafting=drafting, drafted=drafted, accepted=accepted)


def _replay(drafter: Drafter, answer: LoggedAnswer) -> tuple[int, int, int, int, int]:
    first = len(answer.prompt)
    tokens: list[int] = [*answer.prompt.tolist(), *answer.response.tolist()]
    end = len(tokens)
    drafter.begin(Text(tokens=tokens, prompt_length=first))
    steps = drafting = drafted = accepted = 0
    context = first + 1
    while context < end:
        steps += 1
        room = answer.budget - (context - first) - 1
        draft = drafter.draft(context)[:room] if room > 0 else ()
        taken = 0
        if draft:
            taken = _common_length(draft, tokens, context)
            drafter.accepted(taken)
            drafting += 1
            drafted += len(draft)
            accepted += taken
        context += taken + 1
    return max(end - first - 1, 0), steps, drafting, drafted, accepted


def _common_length(draft: Sequence[int], tokens: list[int], start: int) -> int:
    count = 0
    for drafted, real in zip(draft, tokens[start : start + len(draft)], strict=False):
        if drafted != real:
            break
        count += 1
    return count
