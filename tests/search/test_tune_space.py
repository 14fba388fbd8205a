"""Axes multiplied out: names, every axis, predicates, what cannot be."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speclift.core.drafting import Template
from speclift.core.speculation import Drafter, DraftModel, Head, NGram, Speculation, Suffix
from speclift.search.space import Axes, Candidate, build_space, with_k

TINY = DraftModel(model="models/tiny.gguf")


def names(axes: Axes) -> list[str]:
    return [candidate.name for candidate in build_space(axes).candidates]


templates: st.SearchStrategy[Template] = st.sampled_from(
    [NGram(), NGram(variant="mod"), TINY, DraftModel(model="x/tiny.gguf"), Head(kind="eagle"), Suffix()]
)


@settings(max_examples=2 * settings().max_examples)
@given(
    drafters=st.lists(templates, min_size=1, max_size=4),
    ks=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    p_mins=st.lists(st.sampled_from([0.0, 0.3, 0.6]), max_size=2),
    budgets=st.sampled_from([(None,), (None, 2048), (512, 1024)]),
)
def test_names_are_unique_and_every_k_is_there(
    drafters: list[Template], ks: list[int], p_mins: list[float], budgets: tuple[int | None, ...]
) -> None:
    space = build_space(
        Axes(drafters=tuple(drafters), ks=tuple(ks), p_mins=tuple(p_mins), token_budgets=budgets)
    )
    found = [candidate.name for candidate in space.candidates]
    assert len(set(found)) == len(found)
    assert space.candidates[0].is_baseline
    for drafter in {candidate.drafter for candidate in space.candidates if candidate.drafter}:
        assert {each.k for each in space.candidates if each.drafter == drafter} == set(ks)


def test_what_a_predicate_refuses_is_never_a_candidate_and_keeps_the_first_reason() -> None:
    def too_long(candidate: Candidate) -> str | None:
        return "drafts do not fit beside the weights" if candidate.k > 2 else None

    def dead(candidate: Candidate) -> str | None:
        return "removed in this version" if candidate.k > 3 else None

    space = build_space(Axes(drafters=(NGram(),), ks=(2, 3, 4)), [too_long, dead])
    assert [candidate.name for candidate in space.candidates] == ["baseline", "ngram-k2"]
    assert [(each.candidate, each.stage, each.reason) for each in space.eliminated] == [
        ("ngram-k3", "space", "drafts do not fit beside the weights"),
        ("ngram-k4", "space", "drafts do not fit beside the weights"),
    ]


@pytest.mark.parametrize("part", [TINY, DraftModel(model="m", k=5, k_min=4), NGram(), Head(kind="mtp")])
def test_setting_k_keeps_the_shortest_draft(part: Drafter) -> None:
    assert with_k(with_k(part, 7), part.k) == part


class TestDraftFiles:
    """For engines that want each quantisation of a draft as a file."""

    FILES: ClassVar = {("m.gguf", "q8_0"): "m-q8_0.gguf", ("m.gguf", "q4_0"): "m.gguf"}
    QUANTISATIONS = (None, "q8_0", "q4_0")

    def drafted(self, drafter: Template) -> dict[str, Speculation]:
        axes = Axes(
            drafters=(drafter,), ks=(3,), draft_quantisations=self.QUANTISATIONS, draft_files=self.FILES
        )
        return {
            each.name: each.arm.speculation for each in build_space(axes).candidates if not each.is_baseline
        }

    def test_the_file_takes_the_place_of_the_key_and_the_same_file_is_tried_once(self) -> None:
        assert self.drafted(DraftModel(model="m.gguf")) == {
            "draft-k3": DraftModel(model="m.gguf", k=3),
            "draft-draftq8_0-k3": DraftModel(model="m-q8_0.gguf", k=3),
        }
