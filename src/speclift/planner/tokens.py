"""Do target and draft speak the same tokens? Compared id by id, padding told from difference. Pure.

This is the comparison for every engine and file format; what an engine makes of it stands in its folder.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

DIFFERENCES_SHOWN_MAX = 8
# What converters write at ids that only round a matrix up: [PAD151936], <unused7>, <|reserved_special_token_3|>.
_PADDING = re.compile(r"\[PAD\d+\]|<unused\d+>|<\|reserved_special_token_\d+\|>|<\|dummy_\d+\|>")


TokenText: TypeAlias = str | bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Token texts by id; bytes where a text is not UTF-8."""

    tokens: tuple[TokenText, ...]
    type: str
    bos_id: int | None
    eos_id: int | None
    add_bos: bool
    add_eos: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferingToken:
    """None: that side has no token at this id."""

    token_id: int
    target: TokenText | None
    draft: TokenText | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenComparison:
    target_size: int
    draft_size: int
    differing_count: int
    differences: tuple[DifferingToken, ...]
    # Tokens of the larger vocabulary beyond the end of the smaller, padding not counted.
    only_target_count: int
    only_draft_count: int

    @property
    def same(self) -> bool:
        """No id means two things; what only one side has at its end cannot be drafted wrongly."""
        return self.differing_count == 0

    @property
    def padding_only(self) -> bool:
        return (
            self.same
            and self.target_size != self.draft_size
            and self.only_target_count + self.only_draft_count == 0
        )


def identical(size: int) -> TokenComparison:
    """Two files that are one: nothing to compare."""
    return TokenComparison(
        target_size=size, draft_size=size, differing_count=0, differences=(), only_target_count=0, only_draft_count=0
    )  # fmt: skip


def compare_tokens(target: Sequence[TokenText | None], draft: Sequence[TokenText | None]) -> TokenComparison:
    shared = min(len(target), len(draft))
    differing = [
        token_id
        for token_id in range(shared)
        if target[token_id] != draft[token_id]
        and not (_is_padding(target[token_id]) and _is_padding(draft[token_id]))
    ]
    return TokenComparison(
        target_size=len(target),
        draft_size=len(draft),
        differing_count=len(differing),
        differences=tuple(
            DifferingToken(token_id=token_id, target=target[token_id], draft=draft[token_id])
            for token_id in differing[:DIFFERENCES_SHOWN_MAX]
        ),
        only_target_count=sum(not _is_padding(text) for text in target[shared:]),
        only_draft_count=sum(not _is_padding(text) for text in draft[shared:]),
    )


def _is_padding(text: TokenText | None) -> bool:
    return text is None or (isinstance(text, str) and _PADDING.fullmatch(text) is not None)
