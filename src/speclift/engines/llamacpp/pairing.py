"""Will this draft's vocabulary work with this target? Applies the rule of llama.cpp's own check.

Source: llama.cpp b10586, common/speculative.cpp, common_speculative_are_compatible. The server does not
fail when the check does: it starts without speculation, so the answer has to be known before a launch.
Merges, special-token flags and chat templates are not compared, there or here.
"""

from __future__ import annotations

from dataclasses import dataclass

from speclift.planner.tokens import DifferingToken, TokenComparison, Vocabulary

# SPEC_VOCAB_MAX_SIZE_DIFFERENCE and SPEC_VOCAB_CHECK_START_TOKEN_ID in common/speculative.cpp.
SIZE_DIFFERENCE_MAX = 128
FIRST_COMPARED_ID = 5

# Enough to recognise the kind of difference without filling the screen.
DIFFERENCES_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingReport:
    compatible: bool
    message: str
    target_size: int
    draft_size: int
    differences: tuple[DifferingToken, ...]
    differing_count: int
    padding_only: bool
    """The larger vocabulary is the smaller one with tokens added at its end, and nothing else differs."""

    @property
    def size_difference(self) -> int:
        return abs(self.target_size - self.draft_size)


def compare_vocabularies(target: Vocabulary, draft: Vocabulary) -> PairingReport:
    differences, differing_count = _differing_tokens(target, draft)
    rule_breaks = [
        *_special_token_breaks(target, draft),
        *_size_breaks(target, draft),
        *_text_breaks(differences, differing_count),
    ]
    only_size_differs = not _special_token_breaks(target, draft) and differing_count == 0
    return PairingReport(
        compatible=not rule_breaks,
        message=_message(target, draft, rule_breaks),
        target_size=len(target.tokens),
        draft_size=len(draft.tokens),
        differences=differences,
        differing_count=differing_count,
        padding_only=only_size_differs and len(target.tokens) != len(draft.tokens),
    )


def _differing_tokens(target: Vocabulary, draft: Vocabulary) -> tuple[tuple[DifferingToken, ...], int]:
    differing_ids = [
        token_id
        for token_id, (ours, theirs) in enumerate(zip(target.tokens, draft.tokens, strict=False))
        if token_id >= FIRST_COMPARED_ID and ours != theirs
    ]
    shown = tuple(
        DifferingToken(token_id=token_id, target=target.tokens[token_id], draft=draft.tokens[token_id])
        for token_id in differing_ids[:DIFFERENCES_SHOWN_MAX]
    )
    return shown, len(differing_ids)


def _special_token_breaks(target: Vocabulary, draft: Vocabulary) -> list[str]:
    breaks = []
    if target.type != draft.type:
        breaks.append(f"the vocabulary types differ (target {target.type}, draft {draft.type})")
    pairs = (
        ("BOS", target.add_bos, draft.add_bos, target.bos_id, draft.bos_id),
        ("EOS", target.add_eos, draft.add_eos, target.eos_id, draft.eos_id),
    )
    for name, target_adds, draft_adds, target_id, draft_id in pairs:
        if target_adds != draft_adds:
            adding, other = ("target", "draft") if target_adds else ("draft", "target")
            breaks.append(f"the {adding} adds the {name} token, the {other} does not")
        elif target_adds and target_id != draft_id:
            breaks.append(f"the {name} token ids differ (target {target_id}, draft {draft_id})")
    return breaks


def _size_breaks(target: Vocabulary, draft: Vocabulary) -> list[str]:
    difference = abs(len(target.tokens) - len(draft.tokens))
    if difference <= SIZE_DIFFERENCE_MAX:
        return []
    return [
        f"the sizes differ by {difference} tokens, more than {SIZE_DIFFERENCE_MAX} "
        f"(target {len(target.tokens)}, draft {len(draft.tokens)})"
    ]


def _text_breaks(differences: tuple[DifferingToken, ...], differing_count: int) -> list[str]:
    if not differences:
        return []
    first = differences[0]
    what = (
        "1 token text differs, at" if differing_count == 1 else f"{differing_count} token texts differ, first"
    )
    return [f"{what} id {first.token_id} (target {first.target!r}, draft {first.draft!r})"]


def _message(target: Vocabulary, draft: Vocabulary, rule_breaks: list[str]) -> str:
    if rule_breaks:
        return f"The draft cannot be used with this target: {'; '.join(rule_breaks)}."
    target_size, draft_size = len(target.tokens), len(draft.tokens)
    if target_size == draft_size:
        return f"The vocabularies match ({target_size} tokens)."
    larger = "target" if target_size > draft_size else "draft"
    return (
        f"The vocabularies match, except {abs(target_size - draft_size)} tokens "
        f"that only the {larger} has at its end."
    )


def rule_breaks(comparison: TokenComparison) -> str:
    """What the check would object to, as far as texts and sizes tell; empty where nothing."""
    size_difference = abs(comparison.target_size - comparison.draft_size)
    if size_difference > SIZE_DIFFERENCE_MAX:
        return f"the vocabularies differ by {size_difference} tokens, more than {SIZE_DIFFERENCE_MAX}"
    late = [found.token_id for found in comparison.differences if found.token_id >= FIRST_COMPARED_ID]
    unseen = comparison.differing_count - len(comparison.differences)
    if late or unseen:
        return f"{len(late) + unseen} token texts differ"
    return ""
