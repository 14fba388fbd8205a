"""What the draft learns on: prompts of eight kinds, from word lists, templates and text the target wrote itself.

Nothing here comes from the bundled evaluation prompts; `without_overlap` drops whatever shares eight words in a row
with one of them by chance.
"""

from __future__ import annotations

import json
import random
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OVERLAP_WORDS = 8
# What the template says where a conversation has no system message of its own.
SYSTEM = ("system", "You are a helpful AI assistant named SmolLM, trained by Hugging Face")

with (Path(__file__).parent / "practice.toml").open("rb") as _file:
    _LISTS = tomllib.load(_file)
WORDS: dict[str, list[str]] = _LISTS["words"]
PATTERNS: dict[str, list[str]] = _LISTS["patterns"]
DOCUMENTS: list[dict[str, Any]] = _LISTS["documents"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    kind: str
    messages: tuple[tuple[str, str], ...]
    max_tokens: int


def chat_text(messages: Sequence[tuple[str, str]]) -> str:
    """The target's own chat template, up to where the answer begins."""
    turns = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in (SYSTEM, *messages))
    return turns + "<|im_start|>assistant\n"


def user_turn() -> str:
    """The target continues this with a message that a user might have written."""
    return f"<|im_start|>{SYSTEM[0]}\n{SYSTEM[1]}<|im_end|>\n<|im_start|>user\n"


def material_prompts(count: int, seed: int) -> list[Prompt]:
    """What the target writes first: passages and code that later prompts are made of."""
    draw = random.Random(seed)
    prompts = []
    for _ in range(count):
        if draw.random() < 0.7:
            prompts.append(_asked("passage", _filled(draw, draw.choice(PATTERNS["passages"])), 224))
        else:
            prompts.append(_asked("code-writing", _filled(draw, draw.choice(PATTERNS["code"])), 256))
    return prompts


def prompts_on(
    passages: Sequence[str], codes: Sequence[str], user_messages: Sequence[str], *, count: int, seed: int
) -> list[Prompt]:
    """`count` prompts of all kinds in equal parts; copying and chat twice, since they need most practice."""
    draw = random.Random(seed)
    kinds = (
        lambda: _asked("chat", _filled(draw, draw.choice(PATTERNS["chat"])), 192),
        lambda: _asked("chat", draw.choice(user_messages), 192),
        lambda: _asked("creative", _filled(draw, draw.choice(PATTERNS["creative"])), 192),
        lambda: _asked("code-writing", _filled(draw, draw.choice(PATTERNS["code"])), 256),
        lambda: _edit(draw, codes),
        lambda: _about(draw, passages, "summarise", PATTERNS["summaries"], 128),
        lambda: _about(draw, passages, "passage-qa", PATTERNS["questions"], 96),
        lambda: _extraction(draw),
        lambda: _copy(draw, passages, codes),
        lambda: _copy(draw, passages, codes),
    )
    return [draw.choice(kinds)() for _ in range(count)]


def without_overlap(prompts: Iterable[Prompt], evaluation: Path) -> Iterator[Prompt]:
    """Those that share no eight words in a row with an evaluation prompt."""
    seen: set[tuple[str, ...]] = set()
    for path in sorted(evaluation.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            for message in json.loads(line)["messages"]:
                seen.update(_runs(message["content"]))
    for prompt in prompts:
        if not any(run in seen for _, text in prompt.messages for run in _runs(text)):
            yield prompt


def code_blocks(answer: str) -> list[str]:
    return [
        block.strip()
        for block in re.findall(r"```\w*\n(.*?)```", answer, flags=re.S)
        if 60 < len(block) < 900
    ]


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return (tuple(words[start : start + OVERLAP_WORDS]) for start in range(len(words) - OVERLAP_WORDS + 1))


def _asked(kind: str, text: str, max_tokens: int) -> Prompt:
    return Prompt(kind=kind, messages=(("user", text),), max_tokens=max_tokens)


def _filled(draw: random.Random, pattern: str, **known: str) -> str:
    """Every gap filled at random; those of two kinds differ from each other."""
    gaps: dict[str, str | int] = {
        gap: draw.choice(WORDS[words])
        for gap, words in {
            "last": "last_names", "job": "jobs", "feeling": "feelings", "language": "languages", "task": "code_tasks",
            "identifier": "identifiers", "table": "tables", "month": "months", "level": "levels",
            "component": "components", "fault": "faults", "symptom": "symptoms", "medicine": "medicines",
            "stock": "stocks",
        }.items()
    }  # fmt: skip
    for gap, other, words in (
        ("subject", "other", "subjects"),
        ("name", "name2", "names"),
        ("thing", "thing2", "things"),
        ("place", "place2", "places"),
    ):
        gaps[gap], gaps[other] = draw.sample(WORDS[words], 2)
    columns = draw.sample(WORDS["columns"], 4)
    count, cents = draw.randint(2, 40), draw.randint(210, 40099)
    numbers: dict[str, str | int] = {
        "columns": ", ".join(columns), "column": columns[-1], "count": count, "price": f"{cents / 100:.2f}",
        "total": f"{count + 0.5 + cents / 100:.2f}", "dear": 400 + count, "age": 18 + count,
        "number": draw.randint(12, 999), "id": draw.randint(1000, 99999), "small": draw.randint(2, 20),
        "digit": draw.randint(1, 5), "day": draw.randint(1, 28), "year": draw.randint(2024, 2039),
        "hour": f"{draw.randint(6, 21):02d}:{draw.choice(['00', '15', '30', '45'])}",
    }  # fmt: skip
    return pattern.format(**gaps, **numbers, **known)


def _edit(draw: random.Random, codes: Sequence[str]) -> Prompt:
    asked = _filled(draw, draw.choice(PATTERNS["edits"]))
    fence = draw.choice(["```python", "```", "```python", "```javascript"])
    return _asked("code-editing", f"{asked}\n\n{fence}\n{draw.choice(codes)}\n```", 256)


def _about(
    draw: random.Random, passages: Sequence[str], kind: str, patterns: Sequence[str], max_tokens: int
) -> Prompt:
    asked, passage = _filled(draw, draw.choice(patterns)), draw.choice(passages)
    text = f"{asked}\n\n{passage}" if draw.random() < 0.6 else f"{passage}\n\n{asked}"
    return _asked(kind, text, max_tokens)


def _copy(draw: random.Random, passages: Sequence[str], codes: Sequence[str]) -> Prompt:
    text = draw.choice(passages) if draw.random() < 0.7 else draw.choice([draw.choice(codes), _listing(draw)])
    first = ("user", f"{draw.choice(PATTERNS['copies'])}\n\n{text}")
    if draw.random() < 0.35:
        return Prompt(kind="verbatim-rewrite", messages=(first,), max_tokens=192)
    again = ("user", draw.choice(PATTERNS["again"]))
    return Prompt(kind="verbatim-rewrite", messages=(first, ("assistant", text), again), max_tokens=192)


def _listing(draw: random.Random) -> str:
    style = draw.choice(["- {}", "* {}", "{n}. {}", "{}"])
    rows = [_filled(draw, draw.choice(PATTERNS["listings"])) for _ in range(draw.randint(5, 14))]
    return "\n".join(style.format(row, n=number) for number, row in enumerate(rows, 1))


def _extraction(draw: random.Random) -> Prompt:
    """A small made-up document and the keys wanted from it, all of them or some."""
    document = draw.choice(DOCUMENTS)
    keys = list(document["keys"])
    if draw.random() < 0.4:
        keys = draw.sample(keys, draw.randint(2, len(keys)))
    listed = ", ".join(f'"{key}"' for key in keys)
    asked = _filled(draw, draw.choice(PATTERNS["extractions"]), keys=listed)
    return _asked("json-extraction", f"{asked}\n\n{_filled(draw, document['text'])}", 128)
