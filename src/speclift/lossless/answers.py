"""What a server said, as the gate compares it: bytes, tokens with their alternatives where it told them."""

from __future__ import annotations

from dataclasses import dataclass

from speclift.core.units import Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One token that the server could have said at a position, with its log-probability in nats."""

    data: bytes
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The token said at a position and the most likely ones there, itself among them."""

    data: bytes
    logprob: float
    choices: tuple[Alternative, ...]

    def margin_to(self, other: Alternative) -> float:
        return max(0.0, self.logprob - other.logprob)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer. `said` is empty where the server gives no log-probabilities, `ids` where it gives no ids."""

    case: str
    text: str
    finish_reason: str | None
    tokens: Tokens | None
    said: tuple[Said, ...] = ()
    ids: tuple[int, ...] = ()
    prompt_ids: tuple[int, ...] = ()
    drafted: Tokens | None = None
    accepted: Tokens | None = None
    # What the server answered instead, where it refused or broke off.
    error: str = ""

    @property
    def is_ok(self) -> bool:
        return not self.error

    @property
    def length(self) -> int:
        """Tokens as the server counts them; where it does not, words stand in."""
        return self.tokens if self.tokens is not None else max(1, len(self.text.split()))

    @property
    def seen(self) -> int:
        """Tokens that a comparison of texts sees: none of an empty one, whatever the server counted."""
        return self.length if self.text else 0


def aligned(answer: Answer) -> tuple[tuple[int, Said], ...]:
    """Each token with the byte at which it starts; empty where tokens and text do not fit together.

    A token of the end may stand behind the text: vLLM lists it, llama.cpp does not.
    """
    text, start, placed = answer.text.encode(), 0, []
    for said in answer.said:
        if start < len(text) and text[start : start + len(said.data)] != said.data:
            return ()
        placed.append((start, said))
        start += len(said.data) if start < len(text) else 0
    return tuple(placed) if start >= len(text) else ()
