from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclift.core.document import plain, read
from speclift.core.errors import UsageError
from speclift.core.speculation import (
    DRAFT_SAMPLINGS,
    HEAD_KINDS,
    NGRAM_VARIANTS,
    Attached,
    Combined,
    DraftModel,
    Head,
    NGram,
    Off,
    Speculation,
    Suffix,
    Synthetic,
)

lengths = st.integers(1, 64)
names = st.none() | st.text(max_size=8)


@st.composite
def draft_models(draw: st.DrawFn) -> DraftModel:
    k = draw(lengths)
    return DraftModel(
        model=draw(st.text(max_size=20)),
        k=k,
        k_min=draw(st.integers(0, k)),
        p_min=draw(st.floats(0, 1)),
        sampling=draw(st.sampled_from(DRAFT_SAMPLINGS)),
        gpu_layers=draw(st.none() | st.integers(0, 99)),
        device=draw(names),
        kv_type_k=draw(names),
        kv_type_v=draw(names),
    )


drafters = st.one_of(
    draft_models(),
    st.builds(
        NGram,
        variant=st.sampled_from(NGRAM_VARIANTS),
        k=lengths,
        n=st.integers(1, 32),
        min_hits=st.integers(1, 4),
    ),
    st.builds(Suffix, k=lengths),
    st.builds(Head, kind=st.sampled_from(HEAD_KINDS), k=lengths, model=names),
)


@st.composite
def synthetics(draw: st.DrawFn) -> Synthetic:
    inner = draw(drafters)
    rates = draw(st.lists(st.floats(0, 1), min_size=inner.k, max_size=inner.k))
    return Synthetic(inner=inner, rates=tuple(sorted(rates, reverse=True)))


speculations = st.one_of(
    st.just(Off()),
    st.just(Attached()),
    drafters,
    st.builds(Combined, parts=st.lists(drafters, min_size=2, max_size=4).map(tuple)),
    synthetics(),
)


class TestStoredForm:
    @given(speculations)
    def test_every_method_comes_back_unchanged_through_json(self, speculation: Speculation) -> None:
        text = json.dumps(plain(speculation))

        assert read(Speculation, json.loads(text)) == speculation


WRONG: list[tuple[type[Any], dict[str, Any], str]] = [
    (NGram, {"k": 0}, "k counts drafted tokens and must be at least 1, saw 0"),
    (Suffix, {"k": -3}, "at least 1, saw -3"),
    (Head, {"kind": "mtp", "k": 0}, "at least 1, saw 0"),
    (NGram, {"n": 0}, "looks up at least 1 token, saw n=0"),
    (NGram, {"variant": "map_k"}, "unknown n-gram variant 'map_k'. Did you mean 'map-k'?"),
    (Head, {"kind": "eagel"}, "unknown head kind 'eagel'. Did you mean 'eagle'?"),
    (DraftModel, {"model": "m", "k": 4, "k_min": 5}, "k_min must lie in 0..k=4, saw 5"),
    (DraftModel, {"model": "m", "k_min": -1}, "k_min must lie in 0..k=4, saw -1"),
    (DraftModel, {"model": "m", "p_min": 1.5}, "p_min is a probability in 0..1, saw 1.5"),
    (DraftModel, {"model": "m", "p_min": float("nan")}, "p_min is a probability in 0..1, saw nan"),
    (DraftModel, {"model": "m", "sampling": "greed"}, "unknown draft sampling 'greed'. Did you mean 'greedy'?"),
    (Combined, {"parts": (NGram(),)}, "a combination needs at least two methods"),
    (Synthetic, {"inner": NGram(k=1), "rates": ()}, "non-increasing rates in 0..1, saw ()"),
    (Synthetic, {"inner": NGram(k=2), "rates": (0.5, 0.6)}, "non-increasing rates in 0..1, saw (0.5, 0.6)"),
    (Synthetic, {"inner": NGram(k=1), "rates": (1.2,)}, "non-increasing rates in 0..1, saw (1.2,)"),
    (Synthetic, {"inner": NGram(k=3), "rates": (0.9,)}, "one rate per drafted position: k=3, saw 1 rates"),
]  # fmt: skip


class TestWrongValues:
    @pytest.mark.parametrize(("kind", "values", "message"), WRONG)
    def test_say_what_was_seen_and_what_is_allowed(
        self, kind: type[Any], values: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(UsageError) as caught:
            kind(**values)

        assert message in str(caught.value)
