"""llama.cpp's simple look-up drafts nothing where k is below n: what is launched can draft, the rest is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from running import Cli
from speclift.bench.ask import Ask
from speclift.bench.search_space import named_methods, silent_on, space_of, wanted
from speclift.core.speculation import NGram, drafters_of
from speclift.engines.llamacpp.flags import never_drafts
from speclift.planner.methods import arms_for, with_fitting_n
from speclift.search.space import Axes


@pytest.mark.parametrize("ks", [(3,), (8,), (1,), (3, 8), (12,), (48,), (2, 4, 6, 8)])
@pytest.mark.parametrize("method", ["ngram", "ngram:simple", "ngram,min_hits=2", ""])
def test_a_look_up_without_n_can_draft_at_every_k_asked_for(method: str, ks: tuple[int, ...]) -> None:
    ask = Ask.of(methods=(method,) if method else (), ks=ks)
    arms = arms_for(methods=named_methods(ask), ks=ks, drafts=())
    assert len(arms) == len(ks) + 1
    assert [never_drafts(arm) for arm in arms] == [None] * len(arms)
    found = wanted(ask, model="m", drafts=())
    assert space_of(found, Axes(drafters=()), [silent_on("llamacpp")]).eliminated == ()


@pytest.mark.parametrize(
    ("method", "ks", "made"),
    [
        ("ngram", (3,), "ngram,n=3"),
        ("ngram", (), "ngram"),
        ("ngram,k=5", (), "ngram,k=5,n=5"),
        ("ngram,n=4", (3,), "ngram,n=4"),
        ("ngram", (15, 7), "ngram,n=7"),
        ("ngram", (48,), "ngram"),
        ("ngram+draft", (4,), "ngram,n=4+draft"),
        ("ngram:map-k", (3,), "ngram:map-k"),
        ("draft", (3,), "draft"),
    ],
)
def test_n_is_added_only_where_the_default_could_not_draft(
    method: str, ks: tuple[int, ...], made: str
) -> None:
    assert with_fitting_n(method, ks=ks) == made


def test_other_engines_keep_their_own_n() -> None:
    (method,) = named_methods(Ask.of(engine="fake", methods=("ngram",), ks=(3,)))
    _, arm = arms_for(methods=(method,), ks=(3,), drafts=())
    assert [part.n for part in drafters_of(arm.speculation) if isinstance(part, NGram)] == [NGram().n]


@pytest.mark.llama
@pytest.mark.parametrize("verb", ["decide", "measure", "verify"])
def test_a_pair_that_never_drafts_is_refused_before_launching(
    verb: str, cli: Cli, embedded_model: Path, tmp_path: Path
) -> None:
    result = cli(verb, "--model", embedded_model, "--method", "ngram,n=4", "--k", 3)
    assert result.code == 2, result.stderr
    for words in ("k=3, n=4", "n=4 works from k=4 on", "k=3 with n up to 3"):
        assert words in result.stderr
    assert not (tmp_path / "studies").exists()


@pytest.mark.llama
def test_a_look_up_with_k_alone_is_measured_on_the_real_engine(cli: Cli, embedded_model: Path) -> None:
    size = ("--segment", "verbatim-rewrite", "--requests", 2, "--max-tokens", 32, "--temperature", 0)
    result = cli(
        *("measure", "--model", embedded_model, "--method", "ngram", "--k", 3, *size, "--launches", 1),
        *("--threads", 1, "--json"),
    )
    assert result.code == 0, result.stderr
    drafting = [cell for cell in result.document["cells"] if cell["acceptance_rate"] is not None]
    arms = {cell["arm"] for cell in drafting if cell["acceptance_rate"]["mean"] > 0}
    assert arms == {"ngram-k3-n3"}
