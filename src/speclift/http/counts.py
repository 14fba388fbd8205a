"""What a server says of one answer in numbers, and how much of that can be believed. Pure.

llama.cpp (b11549): `timings.draft_n` and `draft_n_accepted`, left out while nothing was drafted; running
totals on every chunk with `timings_per_token`. vLLM (0.32): `metrics.speculative_decoding` on the last chunk
when the server runs with --per-request-spec-decode-metrics. OpenAI: the predictions in `usage`.

A refused number is not used: it becomes None, and what was said is kept for a finding. Refused is what no honest
server could say, whatever its tokenizer; `NO_TEXT_FOR_IT` is the one rule that a strange but honest one may break.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from speclift.core.json_reading import as_object
from speclift.core.records import NO_TEXT_FOR_IT, AnswerRead, Refused, Step
from speclift.core.units import Tokens

# Of a server that says something else that cannot be true in each chunk, the first tell enough.
REFUSED_MAX = 8
COUNT_MAX = 1 << 24  # above the largest context windows of 2026, 10 million tokens
VLLM_NAMES = ("num_draft_tokens", "num_accepted_draft_tokens")
NOT_A_COUNT = "not-a-count"
OVER_MAX_TOKENS = "over-max-tokens"
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


# One for every chunk of an engine that counts alongside: made in a tenth of the time of a dataclass.
class DraftCounts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Totals of one response so far. `output_tokens` is set where the engine counts alongside."""

    drafted: Tokens
    accepted: Tokens
    output_tokens: Tokens | None = None
    steps: tuple[Step, ...] | None = None


def draft_counts(timings: object, metrics: object) -> DraftCounts | None:
    """None where no counts are there at all, which is not the same as none drafted, or none that could be counts."""
    if isinstance(timings, dict) and "predicted_n" in timings:
        tokens = count(timings["predicted_n"])
        drafted, accepted = count(timings.get("draft_n", 0)), count(timings.get("draft_n_accepted", 0))
        if tokens is None or drafted is None or accepted is None:
            return None
        return DraftCounts(drafted=drafted, accepted=accepted, output_tokens=tokens)
    speculative = as_object(metrics).get("speculative_decoding")
    if not isinstance(speculative, dict):
        return None
    drafted, accepted = (count(speculative.get(name, 0)) for name in VLLM_NAMES)
    if drafted is None or accepted is None:
        return None
    return DraftCounts(drafted=drafted, accepted=accepted, steps=_listed_steps(speculative))


def counts_said(timings: object, metrics: object) -> dict[str, object]:
    """What stands where an engine counts, whatever it is, under the engine's own names; empty where nothing does."""
    if isinstance(timings, dict) and "predicted_n" in timings:
        return {
            "predicted_n": timings["predicted_n"],
            "draft_n": timings.get("draft_n", 0),
            "draft_n_accepted": timings.get("draft_n_accepted", 0),
        }
    speculative = as_object(metrics).get("speculative_decoding")
    if not isinstance(speculative, dict):
        return {}
    return {name: speculative.get(name, 0) for name in VLLM_NAMES}


def count(value: object) -> Tokens | None:
    """A number of tokens as servers send it, also as 12.0; None for anything that cannot be one."""
    if type(value) is int:
        return value if 0 <= value <= COUNT_MAX else None
    if not isinstance(value, float) or not 0 <= value <= COUNT_MAX:
        return None
    return int(value) if value == int(value) else None


def _predictions(usage: Mapping[str, object]) -> DraftCounts | None:
    """OpenAI's own fields. Servers that draft nothing fill both with zero; one alone is no rate."""
    details = as_object(usage.get("completion_tokens_details"))
    accepted, rejected = (
        count(details.get(f"{name}_prediction_tokens")) for name in ("accepted", "rejected")
    )
    if accepted is None or rejected is None or accepted + rejected == 0:
        return None
    return DraftCounts(drafted=accepted + rejected, accepted=accepted)


def _listed_steps(speculative: Mapping[str, object]) -> tuple[Step, ...] | None:
    accepted, drafted = speculative.get("per_step_accepted"), speculative.get("per_step_drafted")
    if not isinstance(accepted, list) or not isinstance(drafted, list) or len(accepted) != len(drafted):
        return None
    pairs = [(count(d), count(a)) for d, a in zip(drafted, accepted, strict=True)]
    steps = [Step(drafted=d, accepted=a) for d, a in pairs if d is not None and a is not None]
    return tuple(steps) if len(steps) == len(pairs) else None


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


class Reported:
    """Accumulates what one answer says of itself."""

    __slots__ = ("_accepted", "_drafted", "_limits", "_refused", "_tokens", "drafts", "usage")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # As the server said it last, whether it can be true or not.
        self.usage: Mapping[str, object] = {}
        self.drafts: DraftCounts | None = None
        # By what was said: a server that says it in every chunk says it once.
        self._refused: dict[Refused, None] = {}
        # The engine's running totals at each chunk with text, where it sends them.
        self._tokens = array("l")
        self._drafted = array("l")
        self._accepted = array("l")

    def take(self, usage: object, timings: object, metrics: object, *, text_count: int = 0) -> None:
        """Takes what a chunk with so many texts in it says."""
        if isinstance(usage, dict):
            self.usage = usage
        if timings is None and metrics is None:
            return
        drafts = draft_counts(timings, metrics)
        if drafts is None:
            if len(self._refused) < REFUSED_MAX:
                self._refused |= dict.fromkeys(refused_values(counts_said(timings, metrics)))
            return
        self.drafts = drafts
        for _ in range(text_count):
            self._tokens.append(drafts.output_tokens or 0)
            self._drafted.append(drafts.drafted)
            self._accepted.append(drafts.accepted)

    def believed(self, answer: AnswerRead, *, body_bytes: int, chunk_count: int | None) -> AnswerRead:
        """The answer with the counts that can be true, once it is over. `body_bytes` is of its text, which came in
        `chunk_count` chunks; None where there may be less text than that."""
        usage = {name: self.usage.get(name) for name in ("prompt_tokens", "completion_tokens")}
        self._refused |= dict.fromkeys(refused_values(usage))
        tokens = count(usage["completion_tokens"])
        if tokens is None and self.drafts is not None:
            tokens = self.drafts.output_tokens
        if tokens is not None:
            text_bytes = body_bytes if chunk_count is not None else min(body_bytes, tokens * TOKEN_BYTES_MAX)
            if self._refuse(judge_tokens(tokens, text_bytes=text_bytes, limits=self._limits)):
                tokens = None
        steps = self._steps(tokens, chunk_count or 0)
        drafts = self._possible_drafts(tokens, steps or ())
        return replace(
            answer,
            prompt_tokens=count(usage["prompt_tokens"]),
            output_tokens=tokens,
            drafted=None if drafts is None else drafts.drafted,
            accepted=None if drafts is None else drafts.accepted,
            steps=None if drafts is None else steps,
            refused=tuple(self._refused),
        )

    def _refuse(self, refused: Refused | None) -> bool:
        if refused is not None:
            self._refused[refused] = None
        return refused is not None

    def _possible_drafts(self, output_tokens: Tokens | None, steps: Sequence[Step]) -> DraftCounts | None:
        """None where nothing was counted, or nothing that can be true."""
        drafts = self.drafts or _predictions(self.usage)
        if drafts is None or any(refused.rule == CONTRADICTION for refused in self._refused):
            return None
        refused = judge_drafts(drafts, steps, tokens=output_tokens, limits=self._limits)
        return None if self._refuse(refused) else drafts

    def _steps(self, output_tokens: Tokens | None, chunk_count: int) -> tuple[Step, ...] | None:
        if self.drafts is not None and self.drafts.steps is not None:
            return with_steps_without_draft(self.drafts.steps, output_tokens or 0, chunk_count=chunk_count)
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


def steps_from_cumulative(
    tokens_seen: Sequence[Tokens], drafted_so_far: Sequence[Tokens], accepted_so_far: Sequence[Tokens]
) -> tuple[Step, ...]:
    """The decode steps behind llama.cpp's per-chunk timings: predicted_n, draft_n, draft_n_accepted.

    The counters rise with the first token of a step (b11549), so a step with `a` accepted spans that chunk
    and the next `a` tokens; a token outside such a span whose counters did not move is a step without a
    draft. The first token is the prefill's and belongs to no step.

    Where a chunk carries several tokens, the steps inside it become one step with their summed counts
    followed by steps without a draft: totals and the number of steps stay right. A stream that ends inside
    a step keeps the whole step. Counters that fall, or accept more than was drafted, raise ValueError.
    """
    steps: list[Step] = []
    tokens_before, drafted_before, accepted_before = 0, 0, 0
    tokens_explained = 1
    for tokens, drafted, accepted in zip(tokens_seen, drafted_so_far, accepted_so_far, strict=True):
        step = Step(drafted=drafted - drafted_before, accepted=accepted - accepted_before)
        if tokens < tokens_before or not 0 <= step.accepted <= step.drafted:
            raise ValueError(
                f"not cumulative draft counters: tokens {tokens_before} -> {tokens}, "
                f"drafted {drafted_before} -> {drafted}, accepted {accepted_before} -> {accepted}"
            )
        if step.drafted:
            steps.append(step)
            tokens_explained += step.accepted + 1
        without_draft = max(0, tokens - tokens_explained)
        steps.extend([Step(drafted=0, accepted=0)] * without_draft)
        tokens_explained += without_draft
        tokens_before, drafted_before, accepted_before = tokens, drafted, accepted
    return tuple(steps)


def with_steps_without_draft(
    steps: Sequence[Step], output_tokens: Tokens, *, chunk_count: int = 0
) -> tuple[Step, ...]:
    """vLLM lists the steps that drafted (0.32); what they do not explain came from steps without a draft.

    The added steps stand at the end, wherever they were. A draft cut off at the end of the answer explains tokens
    that never came; the chunks tell better then: one for the prompt, one for each step, fewer only where some
    arrived together.
    """
    explained = 1 + sum(step.accepted + 1 for step in steps)
    missing = max(0, output_tokens - explained, chunk_count - 1 - len(steps))
    return (*steps, *[Step(drafted=0, accepted=0)] * missing)
