"""What a server reports of one answer while it streams, and how much of it can be believed. Pure.

Usage and totals are the last that came; where an engine counts alongside, three numbers for each chunk with text.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from speclift.arithmetic.acceptance import steps_from_cumulative, with_steps_without_draft
from speclift.arithmetic.possible import (
    CONTRADICTION,
    Limits,
    judge_drafts,
    judge_tokens,
    refused_counts,
    refused_values,
)
from speclift.arithmetic.response import DraftCounts, count, draft_counts
from speclift.core.records import Refused, Step
from speclift.core.units import Tokens

# Of a server that says something else that cannot be true in each chunk, the first tell enough.
REFUSED_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Believed:
    """The counts of one answer; what cannot be true is None and stands in `refused`."""

    prompt_tokens: Tokens | None
    output_tokens: Tokens | None
    drafted: Tokens | None
    accepted: Tokens | None
    steps: tuple[Step, ...] | None
    refused: tuple[Refused, ...]


class Reported:
    """Accumulates what one answer says of itself."""

    __slots__ = ("_accepted", "_counts", "_drafted", "_limits", "_refused", "_tokens", "_usage")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._usage: Mapping[str, object] = {}
        self._counts: DraftCounts | None = None
        # By what was said: a server that says it in every chunk says it once.
        self._refused: dict[Refused, None] = {}
        # The engine's running totals at each chunk with text, where it sends them.
        self._tokens = array("l")
        self._drafted = array("l")
        self._accepted = array("l")

    @property
    def counts_alongside(self) -> bool:
        return self._counts is not None

    def take(self, payload: Mapping[str, object], *, text_count: int) -> None:
        """A chunk with so many texts in it."""
        usage = payload.get("usage")
        if isinstance(usage, dict):
            self._usage = usage
        if "timings" not in payload and "metrics" not in payload:
            return
        counts = draft_counts(payload)
        if counts is None:
            if len(self._refused) < REFUSED_MAX:
                self._refused |= dict.fromkeys(refused_counts(payload))
            return
        self._counts = counts
        for _ in range(text_count):
            self._tokens.append(counts.output_tokens or 0)
            self._drafted.append(counts.drafted)
            self._accepted.append(counts.accepted)

    def believed(self, *, text_bytes: int, chunk_count: int) -> Believed:
        """Once the answer is over: its text has so many bytes and came in so many chunks."""
        usage = {name: self._usage.get(name) for name in ("prompt_tokens", "completion_tokens")}
        self._refused |= dict.fromkeys(refused_values(usage))
        output_tokens = self._output_tokens(usage["completion_tokens"], text_bytes)
        steps = self._steps(output_tokens, chunk_count)
        counts = self._possible_counts(output_tokens, steps or ())
        return Believed(
            prompt_tokens=count(usage["prompt_tokens"]),
            output_tokens=output_tokens,
            drafted=None if counts is None else counts.drafted,
            accepted=None if counts is None else counts.accepted,
            steps=None if counts is None else steps,
            refused=tuple(self._refused),
        )

    def _refuse(self, refused: Refused | None) -> bool:
        if refused is not None:
            self._refused[refused] = None
        return refused is not None

    def _output_tokens(self, said: object, text_bytes: int) -> Tokens | None:
        tokens = count(said)
        if tokens is None and self._counts is not None:
            tokens = self._counts.output_tokens
        if tokens is None or self._refuse(judge_tokens(tokens, text_bytes=text_bytes, limits=self._limits)):
            return None
        return tokens

    def _possible_counts(self, output_tokens: Tokens | None, steps: Sequence[Step]) -> DraftCounts | None:
        """None where nothing was counted, or nothing that can be true."""
        counts = self._counts
        if counts is None or any(refused.rule == CONTRADICTION for refused in self._refused):
            return None
        refused = judge_drafts(counts, steps, tokens=output_tokens, limits=self._limits)
        return None if self._refuse(refused) else counts

    def _steps(self, output_tokens: Tokens | None, chunk_count: int) -> tuple[Step, ...] | None:
        if self._counts is not None and self._counts.steps is not None:
            return with_steps_without_draft(self._counts.steps, output_tokens or 0, chunk_count=chunk_count)
        if len(self._tokens) < 2 or output_tokens is None:
            return None  # totals only at the end, or none to believe: steps cannot be told apart
        if max(self._tokens) > output_tokens:
            said = f"{max(self._tokens)} tokens counted on the way to {output_tokens}"
            self._refuse(Refused(rule=CONTRADICTION, said=said))
            return None
        try:
            return steps_from_cumulative(self._tokens, self._drafted, self._accepted)
        except ValueError as error:
            self._refuse(Refused(rule=CONTRADICTION, said=str(error)))
            return None  # counters that contradict themselves are no evidence
