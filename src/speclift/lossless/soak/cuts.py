"""What the limit of tokens cut off, and what was whole by then: a call in pieces is no fault, nor one to go on from."""

from __future__ import annotations

from speclift.core.records import AnswerChoice, ToolCall
from speclift.core.units import Tokens
from speclift.lossless.soak.schemas import is_json
from speclift.lossless.soak.values import SoakAnswer

NO_ARGUMENTS = "{}"


def is_cut(finish_reason: str | None, tokens: Tokens | None, limit: Tokens | None) -> bool:
    """vLLM says tool_calls even where the limit ended it in the middle of a call (seen with 0.26)."""
    is_at_limit = limit is not None and tokens is not None and tokens >= limit
    return finish_reason == "length" or (finish_reason == "tool_calls" and is_at_limit)


def whole_calls(answer: SoakAnswer, choice: AnswerChoice, limit: Tokens | None) -> tuple[ToolCall, ...]:
    """Those that came to their end: the next one had begun, or nothing can follow."""
    calls = choice.calls
    was_cut = is_cut(choice.finish_reason, answer.tokens, limit)
    return calls[:-1] if was_cut and calls and not _has_ended(calls[-1]) else calls


def _has_ended(call: ToolCall) -> bool:
    """vLLM also says {} where arguments had not begun."""
    return is_json(call.arguments) and call.arguments.strip() != NO_ARGUMENTS
