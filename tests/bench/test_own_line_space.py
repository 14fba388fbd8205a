"""What a study makes of the user's own line: the arm `yours` in the space, and what plan knows would not run."""

from __future__ import annotations

import pytest

from speclift.bench.ask import Ask
from speclift.bench.search_space import space_of, wanted, with_yours
from speclift.core.arm import YOURS
from speclift.core.speculation import Combined, DraftModel, NGram
from speclift.search.space import Axes, Space


def space(ask: Ask) -> Space:
    found = wanted(ask, model=ask.server.model, drafts=ask.drafts)
    return with_yours(space_of(found, Axes(drafters=())), ask.yours)


@pytest.mark.parametrize(
    "yours",
    [
        DraftModel(model="d", k=16, k_min=4),
        DraftModel(model="d", k=3),
        NGram(k=4, n=3, n_min=2),  # in vLLM's own space, under another name
        NGram(k=7, n=9, n_min=9),
        Combined(parts=(NGram(k=3, n=3), DraftModel(model="d", k=5))),  # two lengths, which no axis leads to
    ],
)
@pytest.mark.parametrize("named", [{}, {"methods": ("ngram,n=3,n_min=2",), "ks": (4, 6)}])
def test_it_is_in_the_space_once_as_it_was_written(
    yours: DraftModel | NGram | Combined, named: dict[str, tuple[object, ...]]
) -> None:
    found = space(Ask.of(engine="vllm", model="m", yours=yours, **named))
    names = [candidate.name for candidate in found.candidates]
    assert names.count(YOURS) == 1
    assert len(set(names)) == len(names)
    speculations = [candidate.arm.speculation for candidate in found.candidates]
    assert speculations.count(yours) == 1
    assert speculations[names.index(YOURS)] == yours


def test_its_own_way_of_drafting_is_tried_at_other_lengths_unless_something_is_named() -> None:
    yours = DraftModel(model="d", k=16)
    lengths = {
        candidate.k
        for candidate in space(Ask.of(engine="vllm", model="m", yours=yours)).candidates
        if isinstance(candidate.arm.speculation, DraftModel)
    }
    assert {1, 4, 16} <= lengths
    named = space(Ask.of(engine="vllm", model="m", yours=yours, methods=("ngram,n=3",), ks=(2,)))
    assert {candidate.name for candidate in named.candidates} == {"baseline", "ngram-n3-k2", YOURS}
