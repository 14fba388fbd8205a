"""The bytes of one streamed response to a record's fields. Pure: arrival times come with the bytes.

Tokens are counted by the server (usage or timings), never by chunks: under speculation one chunk may carry
several. The last token's time is the finish chunk's where the text ended by itself, because the end token
is counted but carries no text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from speclift.core.records import Outcome, Step
from speclift.core.units import Seconds, Tokens
from speclift.model.acceptance import steps_from_cumulative, with_steps_without_draft
from speclift.model.response import DraftCounts, count, draft_counts

ERROR_TEXT_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamResult:
    outcome: Outcome
    error: str = ""
    first_token_s: Seconds | None = None
    last_token_s: Seconds | None = None
    prompt_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    finish_reason: str | None = None
    text: str = ""
    drafted: Tokens | None = None
    accepted: Tokens | None = None
    steps: tuple[Step, ...] | None = None


def read_stream(reads: Iterable[tuple[Seconds, bytes]]) -> StreamResult:
    """`reads` are network reads in order, each with the moment it arrived."""
    reader = _Reader()
    for arrived_s, line, is_whole in _lines(reads):
        if not line.startswith(b"data:"):
            continue  # comments keep the connection alive; event and id lines carry nothing here
        data = line[5:].strip()
        if data == b"[DONE]":
            continue  # some servers send it twice
        payload = _payload(data)
        if payload is None and not is_whole:
            break  # the end of the stream broke it off
        if payload is None:
            return reader.failed(Outcome.MALFORMED, f"not a chunk in the stream: {data[:120]!r}")
        if payload.get("error"):
            return reader.failed(Outcome.HTTP_ERROR, json.dumps(payload["error"])[:ERROR_TEXT_MAX])
        reader.take(arrived_s, payload)
    return reader.result()


def _lines(reads: Iterable[tuple[Seconds, bytes]]) -> Iterable[tuple[Seconds, bytes, bool]]:
    """Lines and whether their end was seen; a line belongs to the read that completed it."""
    rest = b""
    for arrived_s, data in reads:
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            yield arrived_s, line, True
    if rest:
        yield arrived_s, rest, False


def _payload(data: bytes) -> dict[str, Any] | None:
    """One chunk of a completion; None for anything else."""
    try:
        payload = json.loads(data)
    except (ValueError, RecursionError):
        return None
    choices = (payload.get("choices") or []) if isinstance(payload, dict) else None
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        return None
    texts = [text for choice in choices for text in _texts(choice)]
    return payload if all(isinstance(text, str) for text in texts) else None


class _Reader:
    """Accumulates one response."""

    def __init__(self) -> None:
        self.first_s: Seconds | None = None
        self.last_s: Seconds | None = None
        self.finish_s: Seconds | None = None
        self.finish_reason: str | None = None
        self.texts: list[str] = []
        self.usage: dict[str, Any] = {}
        self.counts: DraftCounts | None = None
        self.running: list[DraftCounts] = []

    def take(self, arrived_s: Seconds, payload: dict[str, Any]) -> None:
        counts = draft_counts(payload)
        if counts is not None:
            self.counts = counts
        if isinstance(payload.get("usage"), dict):
            self.usage = payload["usage"]
        for choice in payload.get("choices") or ():
            text = "".join(_texts(choice))
            if text:
                self.first_s = arrived_s if self.first_s is None else self.first_s
                self.last_s = arrived_s
                self.texts.append(text)
                if counts is not None:
                    self.running.append(counts)
            if choice.get("finish_reason"):
                self.finish_reason = str(choice["finish_reason"])
                self.finish_s = arrived_s

    def result(self) -> StreamResult:
        if self.finish_reason is None:
            return self.failed(Outcome.CUT, "the stream ended without a finish reason")
        return self._build(Outcome.OK, "")

    def failed(self, outcome: Outcome, error: str) -> StreamResult:
        return self._build(outcome, error)

    def _build(self, outcome: Outcome, error: str) -> StreamResult:
        output_tokens = count(self.usage.get("completion_tokens"))
        if output_tokens is None and self.counts is not None:
            output_tokens = self.counts.output_tokens
        last_s = self.finish_s if self.finish_reason == "stop" and self.first_s is not None else self.last_s
        return StreamResult(
            outcome=outcome,
            error=error,
            first_token_s=self.first_s,
            last_token_s=last_s,
            prompt_tokens=count(self.usage.get("prompt_tokens")),
            output_tokens=output_tokens,
            finish_reason=self.finish_reason,
            text="".join(self.texts),
            drafted=None if self.counts is None else self.counts.drafted,
            accepted=None if self.counts is None else self.counts.accepted,
            steps=self._steps(output_tokens),
        )

    def _steps(self, output_tokens: Tokens | None) -> tuple[Step, ...] | None:
        if self.counts is not None and self.counts.steps is not None:
            return with_steps_without_draft(self.counts.steps, output_tokens or 0)
        running = [(c.output_tokens, c.drafted, c.accepted) for c in self.running]
        if len(running) < 2:
            return None  # totals only at the end: steps cannot be told apart
        try:
            return steps_from_cumulative(
                [tokens or 0 for tokens, _, _ in running],
                [drafted for _, drafted, _ in running],
                [accepted for _, _, accepted in running],
            )
        except ValueError:
            return None  # counters that contradict themselves are no evidence


def _texts(choice: dict[str, Any]) -> list[Any]:
    """Reasoning models stream their thoughts under another key; they are tokens all the same."""
    delta = choice.get("delta")
    holder = delta if isinstance(delta, dict) else choice
    keys = ("text",) if holder is choice else ("reasoning_content", "content")
    return [holder[key] for key in keys if holder.get(key) is not None]
