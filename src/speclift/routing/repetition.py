"""How much of a prompt would a look-up drafter have had right? The arm's own drafter, on the prompt itself. Pure.

A gateway has no tokenizer at hand: words and single marks stand for tokens. Of nine in ten bundled prompts that gives
the share of SmolLM2's own tokens to within 0.01 (docs/gateway.md). Copying goes from the prompt into an answer that
nobody has yet: what repeats within the prompt shows conversations that copied before, and no first request to copy.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from speclift.core.units import Seconds, Tokens
from speclift.replayer.counts import Ints, LoggedAnswer, batch_of
from speclift.replayer.methods import DrafterSetting, replay_of

# One costs 0.4 µs on an idle core (0.3 to find it, 0.1 to look it up), and a prompt 0.1 ms beside: these take half of
# the usual 2 ms. They are the last ones: that is where an answer's own copies would be found.
TOKENS_MAX: Tokens = 2_000
# So that the rest of a long prompt is not even cut into words; the bundled prompts have 4.5 for each.
CHARACTERS_PER_TOKEN_MAX = 5
# Fewer say nothing of a prompt, however busy the machine.
TOKENS_LEAST: Tokens = 100
# After a look that took less than half of the time, the next may be so much longer.
GROWTH = 1.25
_STANDS_FOR_A_TOKEN = re.compile(r"\w+|[^\w\s]")


class PromptLook:
    """Called with a prompt: the share of its tokens that the drafter would have had right, None where finding its words
    took all of the time there is. Only for drafters that look at nothing but the text.

    A look cannot be broken off: one that took too long makes the next shorter."""

    def __init__(self, setting: DrafterSetting, *, clock: Callable[[], Seconds], limit_s: Seconds) -> None:
        self._setting, self._clock, self._limit_s = setting, clock, limit_s
        self.tokens_max: Tokens = TOKENS_MAX

    def __call__(self, prompt: str) -> float | None:
        started_s = self._clock()
        tokens = standing_tokens(prompt, self.tokens_max)
        is_late = self._clock() - started_s >= self._limit_s
        share = None if is_late else repeated_share(tokens, self._setting)
        self._adapt(self._clock() - started_s)
        return share

    def _adapt(self, took_s: Seconds) -> None:
        if took_s > self._limit_s:
            self.tokens_max = max(TOKENS_LEAST, int(self.tokens_max * self._limit_s / took_s))
        elif took_s < self._limit_s / 2:
            self.tokens_max = min(TOKENS_MAX, int(self.tokens_max * GROWTH))


def standing_tokens(text: str, tokens_max: Tokens = TOKENS_MAX) -> Ints:
    """The same number for the same word or mark; of a long text the end."""
    numbers: dict[str, int] = {}
    end = text[-CHARACTERS_PER_TOKEN_MAX * tokens_max :]
    words = _STANDS_FOR_A_TOKEN.findall(end)[-tokens_max:]
    return np.array([numbers.setdefault(word, len(numbers)) for word in words], dtype=np.int64)


def repeated_share(tokens: Ints, setting: DrafterSetting) -> float:
    """The share that drafts would have had right if all tokens but the first were an answer."""
    # The first token follows nothing, and one alone repeats nothing.
    if len(tokens) <= 2:
        return 0.0
    answer = LoggedAnswer(prompt=tokens[:1], response=tokens[1:], segment="")
    counts = replay_of(setting).counts(batch_of([answer]), [answer])[0]
    return float(counts.accepted.sum() / counts.decoded.sum())
