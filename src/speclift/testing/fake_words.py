"""What a fake server answers where the request leaves no choice: text to copy, a schema, a tool that must be called.

A working server with a model that does as it is told; everything else is `fake_truth.py`'s syllables. Pure.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from speclift.core.document import Json
from speclift.core.json_reading import as_list, as_object, as_text, as_whole
from speclift.core.units import Tokens

# What stands between these is copied; the last such text of a prompt counts.
_TO_COPY = re.compile(r"<<<(.*?)>>>", re.DOTALL)
# A token is a word with the space before it, so that tokens put together are the text.
_TOKEN = re.compile(r"\s*\S+|\s+$")
THOUGHTS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedWords:
    """What a request says about the words of its answer."""

    stops: tuple[str, ...] = ()
    schema: Mapping[str, object] | None = None
    # Tools of which one must be called, by name, with the schema of their arguments.
    tools: tuple[tuple[str, Mapping[str, object]], ...] = ()
    thinking_max: Tokens | None = None
    choices: int = 1
    banned: tuple[int, ...] = ()

    @property
    def has_tools(self) -> bool:
        return bool(self.tools)


FREE_WORDS = AskedWords()


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeWords:
    """The tokens of an answer as text: first thoughts, then either text or the arguments of a call."""

    texts: tuple[str, ...]
    thoughts: int = 0
    tool: str = ""
    finish_reason: str = "stop"

    @property
    def said(self) -> str:
        return "".join(self.texts[self.thoughts :])


def tokens_of(text: str) -> tuple[str, ...]:
    return tuple(_TOKEN.findall(text))


def told_words(prompt: str, asked: AskedWords, draws: random.Random) -> FakeWords | None:
    """None where the request leaves the words to the model."""
    if asked.tools:
        name, schema = _tool_for(prompt, asked.tools)
        arguments = json.dumps(value_for(schema, draws), ensure_ascii=False)
        return FakeWords(texts=tokens_of(arguments), tool=name, finish_reason="tool_calls")
    if asked.schema is not None:
        return FakeWords(texts=tokens_of(json.dumps(value_for(asked.schema, draws), ensure_ascii=False)))
    copied = _TO_COPY.findall(prompt)
    return FakeWords(texts=tokens_of(copied[-1])) if copied else None


def with_thoughts(words: FakeWords, budget: Tokens | None) -> FakeWords:
    if budget is None:
        return words
    count = min(budget, THOUGHTS)
    return replace(words, texts=((" hm",) * count) + words.texts, thoughts=count)


def until_stop(words: FakeWords, stops: Sequence[str]) -> FakeWords:
    """Without the first stop string and whatever follows."""
    places = [place for stop in stops if (place := words.said.find(stop)) >= 0]
    if not places or words.tool:
        return words
    kept = tokens_of(words.said[: min(places)])
    # A server that ends at its first token has still said one.
    return replace(words, texts=(*words.texts[: words.thoughts], *(kept or ("",))), finish_reason="stop")


def until_limit(words: FakeWords, tokens_max: Tokens) -> FakeWords:
    if len(words.texts) <= tokens_max:
        return words
    return replace(
        words,
        texts=words.texts[:tokens_max],
        thoughts=min(words.thoughts, tokens_max),
        finish_reason="length",
    )


def _tool_for(
    prompt: str, tools: Sequence[tuple[str, Mapping[str, object]]]
) -> tuple[str, Mapping[str, object]]:
    """The one that the prompt names last."""
    return max(tools, key=lambda tool: prompt.rfind(tool[0]))


def value_for(schema: Mapping[str, object], draws: random.Random) -> Json:
    """Something that fits, of the part of JSON Schema that most requests use."""
    allowed = as_list(schema.get("enum"))
    if allowed:
        choice = draws.choice(allowed)
        return choice if isinstance(choice, str | int | float | bool) else None
    match schema.get("type"):
        case "object":
            properties = as_object(schema.get("properties"))
            return {name: value_for(as_object(each), draws) for name, each in properties.items()}
        case "array":
            least = as_whole(schema.get("minItems")) or 0
            count = draws.randint(least, max(least, as_whole(schema.get("maxItems")) or least + 2))
            return [value_for(as_object(schema.get("items")), draws) for _ in range(count)]
        case "boolean":
            return draws.random() < 0.5
        case "integer" | "number":
            return draws.randint(0, 99)
        case "null":
            return None
        case _:
            return as_text(schema.get("const")) or "word"
