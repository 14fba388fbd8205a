"""Answers to replay, many of them in one array, so that a drafter looks at all of them at once.

A *context* is named by the index of the token that comes next. The first token of an answer is the prefill's;
decode steps start at the contexts after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
