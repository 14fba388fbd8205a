from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclift.core.errors import UsageError
from speclift.core.speculation import (
    Combined,
    DraftModel,
    Head,
    NGram,
    Off,
    Speculation,
    Suffix,
    Synthetic,
)
from speclift.planner.methods import METHODS, arms_for, parse_method

TINY = "models/tiny.gguf"

GRAMMAR: list[tuple[str, int | None, Speculation]] = [
    ("off", 5, Off()),
    ("ngram", None, NGram()),
    ("ngram", 8, NGram(k=8)),
    ("ngram,k=3", 8, NGram(k=3)),
    (" ngram , n = 4 ,", None, NGram(n=4)),
    ("ngram:map-k,min_hits=2", 7, NGram(variant="map-k", k=7, min_hits=2)),
    ("draft", 6, DraftModel(model=TINY, k=6)),
    ("draft,p_min=0.5,k_min=1", None, DraftModel(model=TINY, p_min=0.5, k_min=1)),
    ("draft,model=other.gguf", None, DraftModel(model="other.gguf")),
    ("draft,sampling=probabilistic", 3, DraftModel(model=TINY, k=3, sampling="probabilistic")),
    ("suffix", 9, Suffix(k=9)),
    ("draft,quantization=fp8", 4, DraftModel(model=TINY, k=4, extra=(("quantization", '"fp8"'),))),
    ("ngram,table=[[1,8,5],[9,64,0]],n=4", 5, NGram(k=5, n=4, extra=(("table", "[[1, 8, 5], [9, 64, 0]]"),))),
    ("synthetic:suffix,a=true,rates=1", None, Synthetic(inner=Suffix(k=1, extra=(("a", "true"),)), rates=(1.0,))),
    ("eagle3", 2, Head(kind="eagle3", k=2, model=TINY)),
    ("ngram+draft", 4, Combined(parts=(NGram(k=4), DraftModel(model=TINY, k=4)))),
    ("ngram,k=8 + draft,k=2", None, Combined(parts=(NGram(k=8), DraftModel(model=TINY, k=2)))),
    ("synthetic,rates=0.9/0.5", None, Synthetic(inner=NGram(k=2), rates=(0.9, 0.5))),
    ("synthetic:draft,rates=0.8/0.6", None, Synthetic(inner=DraftModel(model=TINY, k=2), rates=(0.8, 0.6))),
]  # fmt: skip

WRONG = [
    ("ngrm", "unknown method 'ngrm'. Did you mean 'ngram'?"),
    ("", "unknown method ''."),
    ("ngram:map_k", "unknown n-gram variant 'map_k'. Did you mean 'map-k'?"),
    ("draft:fast", "draft has no subtypes, saw 'fast'"),
    ("off,k=3", "off has no subtypes and no settings"),
    ("ngram,4", "--method ngram,4: expected key=value, saw '4'"),
    ("ngram,k=many", "--method ngram,k=many: k takes a whole number, saw 'many'"),
    ("ngram,n=3,n_min=4", "n_min must lie in 1..n=3, saw 4"),
    ("ngram,k=0", "k counts drafted tokens and must be at least 1, saw 0"),
    ("draft,p_min=nan", "p_min is a probability in 0..1, saw nan"),
    ("draft,sampling=greed", "Did you mean 'greedy'?"),
    ("off+ngram", "only drafting methods can be combined or forced"),
    ("synthetic,rates=0.5,k=4", "one rate per drafted position: k=4, saw 1 rates"),
]  # fmt: skip


class TestTheLanguage:
    @pytest.mark.parametrize(("text", "k", "meant"), GRAMMAR)
    def test_says(self, text: str, k: int | None, meant: Speculation) -> None:
        assert parse_method(text, k=k, draft=TINY) == meant

    @pytest.mark.parametrize(("text", "message"), WRONG)
    def test_refuses_with_what_was_seen(self, text: str, message: str) -> None:
        with pytest.raises(UsageError) as caught:
            parse_method(text, draft=TINY)

        assert message in str(caught.value)

    @given(
        st.lists(st.sampled_from([*METHODS, ",", "=", ":", "+", "/", "k", "n", "0.5", "3", " "]), max_size=8)
    )
    def test_any_sentence_is_understood_or_refused_as_wrong_usage(self, words: list[str]) -> None:
        try:
            arms = arms_for(methods=("".join(words),), ks=(), drafts=(TINY,))
        except UsageError:
            return
        assert arms[0].is_baseline


class TestArms:
    def test_there_is_one_per_method_draft_and_k(self) -> None:
        arms = arms_for(methods=("ngram", "draft"), ks=(2, 4), drafts=("a/big.gguf", "tiny.gguf"))

        assert [arm.name for arm in arms[1:]] == [
            "ngram-k2",
            "ngram-k4",
            "draft-k2-big",
            "draft-k4-big",
            "draft-k2-tiny",
            "draft-k4-tiny",
        ]

    @pytest.mark.parametrize(
        ("methods", "drafts"),
        [
            (("synthetic,rates=0.9/0.5", "synthetic,rates=0.9/0.1", "synthetic,rates=1/1"), ()),
            (("draft,model=a.gguf", "draft,model=b.gguf"), ()),
            (("ngram,k=8+draft,k=2", "ngram,k=8+draft,k=4"), (TINY,)),
            (("draft",), ("a/m.gguf", "b/m.gguf")),
        ],
        ids=["rates", "models by path", "lengths inside a combination", "file names"],
    )
    def test_arms_that_differ_only_in_what_the_name_leaves_out_all_stay(
        self, methods: tuple[str, ...], drafts: tuple[str, ...]
    ) -> None:
        arms = arms_for(methods=methods, ks=(), drafts=drafts)

        assert len({arm.name for arm in arms}) == len({arm.speculation for arm in arms}) == len(arms)
        assert len(arms) == 1 + max(len(methods), len(drafts))

    def test_a_file_name_that_is_not_utf8_still_gives_a_name_that_can_be_stored(self) -> None:
        arms = arms_for(methods=("draft",), ks=(), drafts=("a\udcff.gguf", "b.gguf"))

        assert [arm.name.encode() for arm in arms[1:]] == [b"draft-k4-a\\udcff", b"draft-k4-b"]
