"""What one request counted, in the form the tuner needs: tokens, steps, and the order of what was accepted."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from speclift.core.records import Step
from speclift.core.units import Seconds, Tokens


class RequestCounts(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One request of one cell; as JSON a list, because thousands of them are kept.

    `accepted` and `drafted` list the steps that drafted, in order.

    Empty lists with `steps` above `without_draft` mean that only totals are known (llama.cpp without a stream).
    """

    request_id: str
    # Decoded tokens: all but the first, which is the prefill's.
    tokens: Tokens
    steps: int
    without_draft: int = 0
    accepted: tuple[Tokens, ...] = ()
    drafted: tuple[Tokens, ...] = ()
    tpot_s: Seconds | None = None
    # Steps whose drafts are as long at every k that is searched, and what they drafted: not in the lists.
    kept_steps: int = 0
    kept_drafted: Tokens = 0

    def __post_init__(self) -> None:
        if not 0 <= self.without_draft <= self.steps:
            raise ValueError(f"{self.without_draft} steps without a draft of {self.steps} steps")
        if len(self.accepted) != len(self.drafted):
            raise ValueError(f"{len(self.accepted)} accepted counts for {len(self.drafted)} drafts")
        listed = len(self.accepted) + self.kept_steps
        if self.accepted and listed + self.without_draft != self.steps:
            raise ValueError(
                f"{len(self.accepted)} drafts and {self.without_draft} plain steps, saw {self.steps}"
            )

    @property
    def is_ordered(self) -> bool:
        return self.steps == len(self.accepted) + self.kept_steps + self.without_draft

    @property
    def is_timed(self) -> bool:
        """An answer that came in one piece has no time per token, and one of no time is a clock's fault."""
        return self.tpot_s is not None and 0 < self.tpot_s < math.inf and self.steps > 0

    @property
    def decode_s(self) -> Seconds | None:
        return None if self.tpot_s is None or not self.is_timed else self.tpot_s * self.tokens


def keeping_longer_drafts(request: RequestCounts, k: int) -> RequestCounts:
    """Of a combination whose look-up drafts more than the k of the model behind it: longer drafts are the look-up's,
    and stay what they are at another k of the model's. An engine does not tell which of the two drafted."""
    steps = list(zip(request.accepted, request.drafted, strict=True))
    varied = [(accepted, drafted) for accepted, drafted in steps if drafted <= k]
    return msgspec.structs.replace(
        request,
        accepted=tuple(accepted for accepted, _ in varied),
        drafted=tuple(drafted for _, drafted in varied),
        kept_steps=len(steps) - len(varied),
        kept_drafted=sum(request.drafted) - sum(drafted for _, drafted in varied),
    )


def request_counts(
    request_id: str,
    *,
    output_tokens: Tokens,
    steps: Sequence[Step] | None = None,
    accepted: Tokens = 0,
    tpot_s: Seconds | None = None,
) -> RequestCounts:
    """From what an engine reports of one request; `steps` in order, or only how many drafts were `accepted`.

    Steps without a draft that the engine leaves out of its list (vLLM 0.32) are recovered from the token count:
    output_tokens - 1 - sum(accepted + 1). A last draft cut off by the end of the answer hides at most k of them.
    """
    decoded = max(0, output_tokens - 1)
    if steps is None:
        return RequestCounts(
            request_id=request_id, tokens=decoded, steps=max(0, decoded - accepted), tpot_s=tpot_s
        )
    drafting = [step for step in steps if step.drafted > 0]
    explained = sum(step.accepted + 1 for step in drafting)
    listed = len(steps) - len(drafting)
    without = max(listed, decoded - explained)
    return RequestCounts(
        request_id=request_id,
        tokens=explained + without,
        steps=len(drafting) + without,
        without_draft=without,
        accepted=tuple(step.accepted for step in drafting),
        drafted=tuple(step.drafted for step in drafting),
        tpot_s=tpot_s,
    )


def step_s(requests: Sequence[RequestCounts]) -> Seconds | None:
    """Time of one engine step as its requests saw it: decode time / steps. None where fewer than half were timed: what
    is left may not stand for what is missing."""
    timed = [request for request in requests if request.is_timed]
    steps = sum(request.steps for request in timed)
    if not steps or 2 * len(timed) < len(requests):
        return None
    return math.fsum(request.decode_s or 0.0 for request in timed) / steps
