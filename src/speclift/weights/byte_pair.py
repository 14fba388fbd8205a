"""Byte-level byte pair encoding: text to token ids as GPT-2 and its many descendants do it."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from heapq import heappop, heappush
from typing import Literal

from speclift.core.errors import UsageError

_CLASS = re.compile(r"\\(?P<negated>[pP])\{(?P<name>[A-Za-z_]+)\}")
_CATEGORY = re.compile(r"[LMNPSZC][a-z]?")
_CODE_POINTS = 0x110000


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern as tokenizer files write it; UsageError where Python cannot express it."""
    pieces: list[str] = []
    position = 0
    for found in _CLASS.finditer(pattern):
        if found["negated"] == "P" or not _CATEGORY.fullmatch(found["name"]):
            raise UsageError(f"the pre-tokenizer's {found[0]} cannot be matched here")
        before = pattern[position : found.start()]
        ranges = _ranges_of(found["name"])
        pieces.append(before)
        pieces.append(ranges if _is_inside_class(pattern[: found.start()]) else f"[{ranges}]")
        position = found.end()
    pieces.append(pattern[position:])
    try:
        return re.compile("".join(pieces))
    except re.error as error:
        raise UsageError(f"the pre-tokenizer's pattern cannot be matched here: {error}") from error


def _is_inside_class(before: str) -> bool:
    is_open, position = False, 0
    while position < len(before):
        if before[position] == "\\":
            position += 1
        elif before[position] == "[" and not is_open:
            is_open = True
        elif before[position] == "]":
            is_open = False
        position += 1
    return is_open


def _ranges_of(name: str) -> str:
    found = [text for category, text in _ranges().items() if category.startswith(name)]
    return "".join(found)


@cache
def _ranges() -> dict[str, str]:
    """Every general category as the inside of a character class."""
    ranges: defaultdict[str, list[str]] = defaultdict(list)
    start, current = 0, unicodedata.category(chr(0))
    for point in range(1, _CODE_POINTS + 1):
        category = unicodedata.category(chr(point)) if point < _CODE_POINTS else ""
        if category != current:
            ranges[current].append(f"\\U{start:08x}-\\U{point - 1:08x}")
            start, current = point, category
    return {category: "".join(texts) for category, texts in ranges.items()}


# A log's words repeat; past this many the memory starts again, so that it stays bounded.
REMEMBERED_MAX = 1 << 17
# Bytes that never occur in UTF-8, or rarely: SmolLM2 has no token for 21 of them.
MISSING_BYTES_MAX = 64

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_ONE_DIGIT = r"\p{N}"

GPT2_PATTERNS = (_GPT2,)
# tokenizer.ggml.pre -> patterns, applied one after the other (llama.cpp b10586, src/llama-vocab.cpp).
GGUF_PATTERNS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling"), GPT2_PATTERNS),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum"),
        (_ONE_DIGIT, _GPT2),
    ),
    **dict.fromkeys(
        (
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "lfm2",
            "dbrx",
            "smaug-bpe",
            "glm4",
        ),
        (_LLAMA3,),
    ),
    **dict.fromkeys(("qwen2", "stablelm2", "hunyuan", "deepseek-r1-qwen", "megrez"), (_QWEN2,)),
}
# Words that are tokens are taken whole, whatever the merges would make of them.
GGUF_IGNORING_MERGES = frozenset(
    ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2")
)


class BytePair:
    """`special` maps the texts that stand for one token wherever they occur, such as <|im_end|>."""

    def __init__(
        self,
        *,
        vocabulary: Mapping[str, int],
        merges: Iterable[tuple[str, str]],
        patterns: Sequence[str],
        special: Mapping[str, int],
        ignore_merges: bool = False,
        form: Literal["NFC"] | None = None,
    ) -> None:
        self._vocabulary = vocabulary
        self._ranks = {pair: rank for rank, pair in enumerate(merges)}
        self._patterns = [compiled(pattern) for pattern in patterns]
        self._special = special
        ordered = sorted(special, key=len, reverse=True)
        self._special_pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._ignore_merges = ignore_merges
        self._form = form
        self._remembered: dict[str, list[int]] = {}
        missing = sum(character not in vocabulary for character in _BYTE_CHARACTERS)
        if missing > MISSING_BYTES_MAX:
            raise UsageError(
                f"the vocabulary is not byte-level: {missing} of 256 bytes have no token",
                hint="give token ids in the log, or a tokenizer.json with the tokenizers package installed",
            )

    @property
    def size(self) -> int:
        return max(*self._vocabulary.values(), *self._special.values(), 0) + 1

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """`parse_special` for prompts that a template wrote; what a model answered is plain text."""
        if not parse_special or self._special_pattern is None:
            return self._plain(text)
        ids: list[int] = []
        position = 0
        for found in self._special_pattern.finditer(text):
            ids += self._plain(text[position : found.start()])
            ids.append(self._special[found[0]])
            position = found.end()
        return ids + self._plain(text[position:])

    def _plain(self, text: str) -> list[int]:
        if self._form is not None:
            text = unicodedata.normalize(self._form, text)
        remembered = self._remembered
        ids: list[int] = []
        for word in self._words(text):
            found = remembered.get(word)
            if found is None:
                if len(remembered) >= REMEMBERED_MAX:
                    remembered.clear()
                found = remembered[word] = self._word_ids(word)
            ids += found
        return ids

    def _words(self, text: str) -> Iterator[str]:
        words: Iterable[str] = (text,) if text else ()
        for pattern in self._patterns:
            words = _split(words, pattern)
        return iter(words)

    def _word_ids(self, word: str) -> list[int]:
        # A lone surrogate has no UTF-8 form; JSON can carry one.
        raw = word.encode("utf-8", "surrogatepass")
        symbols = [_BYTE_CHARACTERS[byte] for byte in raw]
        whole = "".join(symbols)
        if self._ignore_merges and whole in self._vocabulary:
            return [self._vocabulary[whole]]
        ids: list[int] = []
        for symbol in _merged(symbols, self._ranks):
            known = self._vocabulary.get(symbol)
            # A merge whose result has no token is spelt out again; a byte without one is left out, as engines do.
            spelt = symbol if known is None else ""
            ids += [self._vocabulary[byte] for byte in spelt if byte in self._vocabulary]
            if known is not None:
                ids.append(known)
        return ids


def _split(words: Iterable[str], pattern: re.Pattern[str]) -> Iterator[str]:
    """What matches stands alone, and so does what lies between."""
    for word in words:
        position = 0
        for found in pattern.finditer(word):
            if found.start() > position:
                yield word[position : found.start()]
            if found[0]:
                yield found[0]
            position = found.end()
        if position < len(word):
            yield word[position:]


def _merged(symbols: Sequence[str], ranks: Mapping[tuple[str, str], int]) -> list[str]:
    """The lowest-ranked neighbours are joined, the leftmost of equals first, until none are left.

    A queue of pairs, so that a word of a million letters takes n log n and not n^2.
    """
    parts: list[str | None] = list(symbols)
    count = len(parts)
    after, before = list(range(1, count + 1)), list(range(-1, count - 1))
    queue: list[tuple[int, int, str, str]] = []

    def offer(left: int) -> None:
        right = after[left] if left >= 0 else count
        if right < count:
            pair = (parts[left] or "", parts[right] or "")
            if pair in ranks:
                heappush(queue, (ranks[pair], left, *pair))

    for index in range(count):
        offer(index)
    while queue:
        _, left, first, second = heappop(queue)
        right = after[left]
        if parts[left] != first or right >= count or parts[right] != second:
            continue  # one of them has been joined to another since
        parts[left], parts[right] = first + second, None
        after[left] = after[right]
        if after[left] < count:
            before[after[left]] = left
        offer(left)
        offer(before[left])
    return [part for part in parts if part is not None]


def _byte_characters() -> tuple[str, ...]:
    """GPT-2's printable character for every byte: itself where it has one, else the next free one from U+0100."""
    shown = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    spare = iter(range(256, 512))
    return tuple(chr(byte if byte in shown else next(spare)) for byte in range(256))


_BYTE_CHARACTERS = _byte_characters()
