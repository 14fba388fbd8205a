"""Text that no working server writes: loops, word salad, bytes that are no text. Judged against the baseline's."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

# A loop: this share of an answer's words lies in repeats of its commonest four words. Poems and lists stay below.
LOOP_SHARE = 0.6
LOOP_WORDS = 4
WORDS_MIN = 20
# Word salad mixes scripts and breaks words: letters of another script than the answer's own, replacement
# characters, words with digits or signs inside.
SALAD_SHARE = 0.15
_WORD = re.compile(r"\S+")
# One letter on either side is enough: more of them would be tried again from each letter of a long word.
_BROKEN = re.compile(r"[^\W\d_][\d_#$%&*+/<=>@\\^|~]++[^\W\d_]")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFaults:
    """Answers of one server that loop or are garbled."""

    answers: int
    looping: tuple[str, ...]
    garbled: tuple[str, ...]


def text_faults(texts: Sequence[tuple[str, str]]) -> TextFaults:
    """`texts` are (case, text)."""
    return TextFaults(
        answers=len(texts),
        looping=tuple(case for case, text in texts if is_looping(text)),
        garbled=tuple(case for case, text in texts if is_garbled(text)),
    )


def is_looping(text: str) -> bool:
    words = _WORD.findall(text.lower())
    if len(words) < WORDS_MIN:
        return False
    grams = Counter(tuple(words[i : i + LOOP_WORDS]) for i in range(len(words) - LOOP_WORDS + 1))
    repeated = sum(count for count in grams.values() if count > 2)
    return repeated / sum(grams.values()) >= LOOP_SHARE


def is_garbled(text: str) -> bool:
    words = _WORD.findall(text)
    if not words:
        return False
    scripts = Counter(_script(character) for character in text if character.isalpha())
    if not scripts:
        return text.count("\ufffd") / len(text) > SALAD_SHARE
    main = scripts.most_common(1)[0][0]
    odd = sum(_is_odd(word, main) for word in words)
    return odd / len(words) > SALAD_SHARE and odd > 2


def _is_odd(word: str, main: str) -> bool:
    letters = {_script(character) for character in word if character.isalpha()}
    return "\ufffd" in word or bool(letters - {main}) or _BROKEN.search(word) is not None


def _script(character: str) -> str:
    return unicodedata.name(character, "UNKNOWN").partition(" ")[0]
