"""The server loop around a drafter that remembers, as llama.cpp has it: one slot, requests in the order of the log.

Such a drafter's offers depend on what was drafted before, so every k is a walk of its own. The server asks for a
draft before each decode step, cuts it to what max_tokens leaves (less one for the target's own token) and tells
the drafter how much was accepted (tools/server/server-context.cpp, b10586).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from speclift.core.units import Tokens
from speclift.replayer.batch import LoggedAnswer
from speclift.replayer.counts import Counts


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
