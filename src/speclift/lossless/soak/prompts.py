"""The soak's own prompts are made of these: sentences that nobody wrote before, and words that no model invents."""

from __future__ import annotations

import hashlib
import random
import re
from enum import StrEnum

from speclift.core.document import Json

# Twelve characters that no language joins: that one stands in an answer by chance is out of the question.
_CONSONANTS = "bcdfghjkmnpqrstvwxz"
_GROUP, _DIGITS = 4, 4
NONCE_SHAPE = re.compile(
    rf"(?<![A-Za-z0-9])[{_CONSONANTS}]{{{_GROUP}}}\d{{{_DIGITS}}}[{_CONSONANTS}]{{{_GROUP}}}(?![A-Za-z0-9])"
)
# What stands between these is to be copied.
COPY_START, COPY_END = "<<<", ">>>"

SEARCH_TOOL, NOTE_TOOL = "find_order", "add_note"
COLOURS = ("red", "green", "blue", "black", "white")

_ADJECTIVES = (
    *("quiet", "narrow", "golden", "ancient", "hollow", "distant", "gentle", "crooked", "frozen", "bright"),
    *("wooden", "restless", "pale", "heavy", "careful", "hidden"),
)
_NOUNS = (
    *(
        "harbour",
        "lantern",
        "orchard",
        "bridge",
        "painter",
        "railway",
        "teacher",
        "mountain",
        "window",
        "river",
    ),
    *(
        "engineer",
        "garden",
        "library",
        "sparrow",
        "market",
        "island",
        "clockmaker",
        "village",
        "forest",
        "letter",
    ),
)
_VERBS = (
    *("watches", "remembers", "crosses", "repairs", "follows", "describes", "measures", "paints", "carries"),
    *("forgets", "answers", "surrounds"),
)
_ADVERBS = ("slowly", "every evening", "without a word", "before sunrise", "in silence", "as always", "twice")
# Characters of several tokens each: marks that combine, scripts without spaces, emoji made of parts, flags.
_WIDE_WORDS = (
    *(
        "naïve",
        "café",
        "Ångström",
        "straße",
        "数据流",
        "投机解码",
        "かな",
        "한국어",
        "чай",
        "ειρήνη",
        "שלום",
        "مرحبا",
    ),
    *("चाय", "ไทย", "👩🏽‍🚀", "🇨🇭", "👨‍👩‍👧‍👦", "🧪", "e\u0301tude", "n\u0303andu", "𝔘𝔫𝔦", "Ω≈ç√∫"),
)


class SoakDialect(StrEnum):
    """Whose names for what OpenAI's API does not have."""

    LLAMACPP = "llamacpp"
    VLLM = "vllm"
    OPENAI = "openai"


def draws_for(seed: int, purpose: str, *parts: object) -> random.Random:
    """Numbers that follow from the seed and what they are for, and from nothing that was drawn before."""
    return random.Random(hashlib.sha256(repr(("soak", seed, purpose, *parts)).encode()).digest())


def nonce_for(seed: int, slot: int) -> str:
    draws = draws_for(seed, "nonce", slot)
    letters = [draws.choice(_CONSONANTS) for _ in range(2 * _GROUP)]
    digits = "".join(draws.choice("0123456789") for _ in range(_DIGITS))
    return f"{''.join(letters[:_GROUP])}{digits}{''.join(letters[_GROUP:])}"


def nonces_in(text: str) -> tuple[str, ...]:
    """Whatever has the shape of one."""
    return tuple(NONCE_SHAPE.findall(text))


def sentence(draws: random.Random) -> str:
    return (
        f"The {draws.choice(_ADJECTIVES)} {draws.choice(_NOUNS)} {draws.choice(_VERBS)} the "
        f"{draws.choice(_ADJECTIVES)} {draws.choice(_NOUNS)} {draws.choice(_ADVERBS)}."
    )


def passage(draws: random.Random, *, words: int) -> str:
    """Sentences, about so many words."""
    sentences: list[str] = []
    count = 0
    while count < words:
        sentences.append(sentence(draws))
        count += len(sentences[-1].split())
    return " ".join(sentences)


def wide_passage(draws: random.Random, *, words: int) -> str:
    return " ".join(draws.choice(_WIDE_WORDS) for _ in range(words))


def with_nonces(text: str, nonce: str) -> str:
    """The nonce after the first sentence and before the last word, so that most of an answer stands beside one."""
    sentences = text.split(". ")
    head = f"{sentences[0]}. Code {nonce}. " if len(sentences) > 1 else f"Code {nonce}. "
    rest = ". ".join(sentences[1:]) if len(sentences) > 1 else text
    return f"{head}{rest} {nonce} ends."


def asks_to_copy(text: str) -> str:
    task = f"Copy the text between {COPY_START} and {COPY_END} exactly, and write nothing else."
    return f"{task}\n{COPY_START}{text}{COPY_END}"


def answer_schema(nonce: str) -> dict[str, Json]:
    """A schema of nothing but what ends: no free text or number that a model could go on with for ever."""
    return {
        "type": "object",
        "properties": {
            "id": {"type": "string", "enum": [nonce]},
            "colour": {"type": "string", "enum": list(COLOURS)},
            "done": {"type": "boolean"},
            "sizes": {
                "type": "array",
                "items": {"type": "integer", "enum": [1, 2, 3, 5, 8]},
                "minItems": 2,
                "maxItems": 4,
            },
        },
        "required": ["id", "colour", "done", "sizes"],
        "additionalProperties": False,
    }


def session_tools(nonce: str) -> tuple[tuple[str, dict[str, Json]], ...]:
    """Tools by name with the schema of their arguments."""
    return (
        (
            SEARCH_TOOL,
            {
                "type": "object",
                "properties": {
                    "order": {"type": "string", "enum": [nonce]},
                    "colour": {"type": "string", "enum": list(COLOURS)},
                },
                "required": ["order", "colour"],
                "additionalProperties": False,
            },
        ),
        (
            NOTE_TOOL,
            {
                "type": "object",
                "properties": {
                    "order": {"type": "string", "enum": [nonce]},
                    "urgent": {"type": "boolean"},
                    "stars": {"type": "integer", "enum": [1, 2, 3, 4, 5]},
                },
                "required": ["order", "urgent", "stars"],
                "additionalProperties": False,
            },
        ),
    )
