"""Which of the numbers that a server reports of one answer can be true? What cannot is refused. Pure.

A refused number is not used: it becomes None, and what was said is kept for a finding. Refused is what no honest
server could say, whatever its tokenizer; `NO_TEXT_FOR_IT` is the one rule that a strange but honest one may break.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from speclift.arithmetic.response import DraftCounts, count, counts_said
from speclift.core.records import Refused, Step
from speclift.core.units import Tokens

NOT_A_COUNT = "not-a-count"
OVER_MAX_TOKENS = "over-max-tokens"
# Hidden reasoning and special tokens are counted and not sent: possible, but no time per token can be had from it.
NO_TEXT_FOR_IT = "more-tokens-than-text"
TOO_MUCH_TEXT = "more-text-than-tokens"
ACCEPTED_OVER_DRAFTED = "accepted-over-drafted"
ACCEPTED_OVER_TOKENS = "accepted-over-tokens"
DRAFTED_OVER_K = "drafted-over-k"
CONTRADICTION = "counters-contradict"

# Tokens without a byte of their own: the end, a leading space, an empty pair of thinking marks (four with their line
# breaks), up to three bytes of a character that the limit cut off.
SILENT_TOKENS = 9
# Far above the longest entries of any vocabulary (runs of 128 blanks).
TOKEN_BYTES_MAX = 512
# Where nobody knows k: longer drafts than anyone runs (llama.cpp's n-gram drafter takes 48 by default, b11549).
DRAFT_TOKENS_MAX = 1024
SHOWN_CHARACTERS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What was asked for: the most tokens of the answer, and the most that one step drafts. None: not known."""

    tokens_max: Tokens | None = None
    draft_max: Tokens | None = None


NO_LIMITS = Limits()


def refused_values(said: Mapping[str, object]) -> tuple[Refused, ...]:
    """Those that are no count at all. What is null or left out was not said."""
    return tuple(
        Refused(rule=NOT_A_COUNT, said=f"{name} {shown(value)}")
        for name, value in said.items()
        if value is not None and count(value) is None
    )


def refused_counts(payload: Mapping[str, object]) -> tuple[Refused, ...]:
    """What a chunk says about drafts and cannot mean."""
    return refused_values(counts_said(payload))


def judge_tokens(tokens: Tokens, *, text_bytes: int, limits: Limits) -> Refused | None:
    """The number of tokens in an answer against what was asked for and what came."""
    if limits.tokens_max is not None and tokens > limits.tokens_max:
        return Refused(
            rule=OVER_MAX_TOKENS, said=f"{tokens} output tokens, but max_tokens was {limits.tokens_max}"
        )
    if tokens > text_bytes + SILENT_TOKENS:
        return Refused(rule=NO_TEXT_FOR_IT, said=f"{tokens} output tokens in {text_bytes} bytes of text")
    if text_bytes > tokens * TOKEN_BYTES_MAX:
        return Refused(rule=TOO_MUCH_TEXT, said=f"{tokens} output tokens for {text_bytes} bytes of text")
    return None


def judge_drafts(
    counts: DraftCounts, steps: Sequence[Step], *, tokens: Tokens | None, limits: Limits
) -> Refused | None:
    """Drafted and accepted tokens against each other, k and the answer's length, where any of it is known.

    Each step adds a token of its own, so there are no more steps than tokens, and one whose tokens came too late.
    What it accepted may not all have been sent: vLLM counts before it cuts an answer off (0.32).
    """
    drafted, accepted = counts.drafted, counts.accepted
    if accepted > drafted or any(step.accepted > step.drafted for step in steps):
        return Refused(rule=ACCEPTED_OVER_DRAFTED, said=f"{accepted} accepted of {drafted} draft tokens")
    in_steps = sum(step.drafted for step in steps)
    if in_steps > drafted or sum(step.accepted for step in steps) > accepted:
        said = f"{in_steps} draft tokens in its steps, but {drafted} drafted and {accepted} accepted in the answer"
        return Refused(rule=CONTRADICTION, said=said)
    tokens = limits.tokens_max if tokens is None else tokens
    if tokens is None:
        return None
    k = limits.draft_max or DRAFT_TOKENS_MAX
    if drafted > k * (tokens + 1):
        said = f"{drafted} draft tokens, but {tokens} tokens at k={k} allow at most {k * (tokens + 1)}"
        return Refused(rule=DRAFTED_OVER_K, said=said)
    if accepted > tokens + k:
        said = f"{accepted} accepted tokens in an answer of {tokens} tokens"
        return Refused(rule=ACCEPTED_OVER_TOKENS, said=said)
    return None


def shown(value: object) -> str:
    return repr(value)[:SHOWN_CHARACTERS]
