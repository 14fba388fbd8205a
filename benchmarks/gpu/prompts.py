"""Prompts of about 256 tokens that repeat themselves, so that a look-up nearly always finds something to copy.

`python benchmarks/gpu/prompts.py COUNT > prompts.jsonl`. With random weights and imposed acceptance their meaning
does not matter; their length does, and that no two requests share a beginning.
"""

from __future__ import annotations

import json
import random
import sys

WORDS = (
    "river", "stone", "lamp", "winter", "bread", "copper", "window", "garden", "paper", "bridge", "letter",
    "mountain", "cloud", "harbour", "silver", "orchard", "thread", "candle", "market", "village", "engine",
)  # fmt: skip
REPEATS = 8


def prompt(index: int) -> str:
    draw = random.Random(index)
    sentence = " ".join(draw.choice(WORDS) for _ in range(30))
    return f"{index}. " + " ".join([sentence] * REPEATS)


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        line = {"id": f"p{number}", "prompt": prompt(number), "temperature": 0, "max_tokens": 128}
        sys.stdout.write(json.dumps(line) + "\n")
