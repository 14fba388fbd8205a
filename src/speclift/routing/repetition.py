"""How much of a prompt would a look-up drafter have had right? The arm's own drafter, on the prompt itself. Pure.

A gateway has no tokenizer at hand: words and single marks stand for tokens. Of nine in ten bundled prompts that gives
the share of SmolLM2's own tokens to within 0.01 (docs/gateway.md). Copying goes from the prompt into an answer that
nobody has yet: what repeats within the prompt shows conversations that copied before, and no first request to copy.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from speclift.core.units import Seconds, Tokens
from speclift.replayer.batch import Ints, LoggedAnswer, batch_of
from speclift.replayer.methods import DrafterSetting, replay_of

# One costs 0.4 µs on an idle core (0.3 to find it, 0.1 to look it up), and a prompt 0.1 ms beside: these take half of
# the usual 2 ms. They are the last ones: that is where an answer's own copies would be found.
TOKENS_MAX: Tokens = 2_000
# So that the rest of a long prompt is not even cut into words; the bundled prompts have 4.5 for each.
CHARACTERS_MAX = 8 * TOKENS_MAX
# The first token follows nothing, and one alone repeats nothing.
TOKENS_MIN: Tokens = 2
_STANDS_FOR_A_TOKEN = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLook:
    """Called with a prompt: the share of its tokens that the drafter would have had right, None where finding its words
    took all of the time there is. Only for drafters that look at nothing but the text."""

    setting: DrafterSetting
    clock: Callable[[], Seconds]
    limit_s: Seconds

    def __call__(self, prompt: str) -> float | None:
        started_s = self.clock()
        tokens = standing_tokens(prompt)
        if self.clock() - started_s >= self.limit_s:
            return None
        return repeated_share(tokens, self.setting)


def standing_tokens(text: str) -> Ints:
    """The same number for the same word or mark; of a long text the end."""
    numbers: dict[str, int] = {}
    words = _STANDS_FOR_A_TOKEN.findall(text[-CHARACTERS_MAX:])[-TOKENS_MAX:]
    return np.array([numbers.setdefault(word, len(numbers)) for word in words], dtype=np.int64)


def repeated_share(tokens: Ints, setting: DrafterSetting) -> float:
    """As if all but the first were an answer that the server decodes."""
    if len(tokens) <= TOKENS_MIN:
        return 0.0
    answer = LoggedAnswer(prompt=tokens[:1], response=tokens[1:], segment="")
    counts = replay_of(setting).counts(batch_of([answer]), [answer])[0]
    return float(counts.accepted.sum() / counts.decoded.sum())
