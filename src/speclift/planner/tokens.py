"""Do target and draft speak the same tokens? Compared id by id, padding told from difference. Pure.

planner/pairing.py holds llama.cpp's own rule; this is the comparison for every engine and file format.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from speclift.planner.pairing import FIRST_COMPARED_ID, SIZE_DIFFERENCE_MAX, TokenText

DIFFERENCES_SHOWN_MAX = 8
# What converters write at ids that only round a matrix up: [PAD151936], <unused7>, <|reserved_special_token_3|>.
_PADDING = re.compile(r"\[PAD\d+\]|<unused\d+>|<\|reserved_special_token_\d+\|>|<\|dummy_\d+\|>")


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


def llama_rule_breaks(comparison: TokenComparison) -> str:
    """What llama.cpp's check would object to, as far as texts and sizes tell; empty where nothing."""
    size_difference = abs(comparison.target_size - comparison.draft_size)
    if size_difference > SIZE_DIFFERENCE_MAX:
        return f"the vocabularies differ by {size_difference} tokens, more than {SIZE_DIFFERENCE_MAX}"
    late = [found.token_id for found in comparison.differences if found.token_id >= FIRST_COMPARED_ID]
    unseen = comparison.differing_count - len(comparison.differences)
    if late or unseen:
        return f"{len(late) + unseen} token texts differ"
    return ""
