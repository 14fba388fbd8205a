"""From what was asked to what is searched: named methods, default spaces, and what is never launched."""

from __future__ import annotations

import json

import pytest

from speclift.bench import deployment
from speclift.bench.ask import Ask
from speclift.bench.observer import Observer
from speclift.bench.search_space import (
    Wanted,
    refused_by,
    silent_on,
    space_of,
    too_large,
    wanted,
)
from speclift.bench.search_study import _axes, _varied, prospect
from speclift.core.arm import Arm, ServerSettings
from speclift.core.document import plain_object
from speclift.core.engine_spec import EngineSpec
from speclift.core.errors import UsageError
from speclift.core.speculation import Combined, DraftModel, NGram, method_name
from speclift.engines.build import Varied
from speclift.engines.kind import engine_kind
from speclift.engines.llamacpp.engine import LlamaCpp
from speclift.engines.vllm.engine import Vllm
from speclift.search.space import Axes, Candidate
from speclift.studies.format import dumps, read_engine
from speclift.weights.catalogue_files import find_gpu


def of(ask: Ask) -> tuple[Wanted, ...]:
    return wanted(ask, model=ask.server.model, drafts=ask.drafts)


def test_a_shortest_draft_is_kept_and_no_k_below_it_is_tried() -> None:
    (named,) = of(Ask.of(engine="llamacpp", methods=("draft,k_min=4",), drafts=("small.gguf",), ks=(16,)))
    assert named == Wanted(template=DraftModel(model="small.gguf", k=4, k_min=4), ks=(16,))
    (usual,) = of(Ask.of(engine="llamacpp", methods=("draft,k_min=4",), drafts=("small.gguf",)))
    assert usual.ks == tuple(k for k in engine_kind("llamacpp").ks(DraftModel(model="x")) if k >= 4)
    (long,) = of(Ask.of(engine="llamacpp", methods=("draft,k_min=500",), drafts=("small.gguf",)))
    assert long.ks == (500,)


def test_a_combination_is_one_way_of_drafting() -> None:
    (both,) = of(Ask.of(methods=("ngram+draft",), drafts=("small.gguf",), ks=(2, 4, 6)))
    assert isinstance(both.template, Combined)
    space = space_of([both], Axes(drafters=()))
    assert [each.name for each in space.candidates] == [
        "baseline",
        "ngram-k6+draft-k2",
        "ngram-k6+draft-k4",
        "ngram-k6+draft-k6",
    ]


@pytest.mark.parametrize(
    ("method", "ks", "expected"),
    [
        ("ngram,k=9+draft", (2, 4), {(9, 2), (9, 4)}),
        ("ngram+draft,k=3", (8, 5), {(8, 3)}),
        ("ngram,k=2+draft,k=5", (), {(2, 5)}),
        ("ngram+draft", (), {(15, 3), (15, 5), (15, 7)}),
    ],
)
def test_each_part_of_a_combination_has_a_k_of_its_own(
    method: str, ks: tuple[int, ...], expected: set[tuple[int, int]]
) -> None:
    found = of(Ask.of(engine="llamacpp", methods=(method,), drafts=("small.gguf",), ks=ks))
    arms = [each.arm.speculation for each in space_of(found, Axes(drafters=())).candidates[1:]]
    assert {tuple(part.k for part in arm.parts) for arm in arms if isinstance(arm, Combined)} == expected


def test_what_the_engine_refuses_is_never_launched_and_says_why() -> None:
    engine = LlamaCpp(ServerSettings(model="m.gguf"))
    refused = refused_by(lambda each: engine.command(each.arm, port=0))
    found = of(Ask.of(methods=("ngram", "ngram:gpu"), ks=(2, 4)))
    space = space_of(found, Axes(drafters=()), [refused])
    assert [each.name for each in space.candidates] == ["baseline", "ngram-n2-k2", "ngram-n2-k4"]
    assert [(each.candidate, each.stage) for each in space.eliminated] == [
        ("ngram-gpu-k2", "space"),
        ("ngram-gpu-k4", "space"),
    ]
    assert "only vLLM has ngram:gpu" in space.eliminated[0].reason


def test_what_would_start_and_never_draft_is_never_launched() -> None:
    found = of(Ask.of(methods=("ngram,n=6",), ks=(3, 5, 7)))
    space = space_of(found, Axes(drafters=()), [silent_on("llamacpp")])
    assert [each.name for each in space.candidates] == ["baseline", "ngram-n6-k7"]
    assert "drafts nothing if k is below n: k=3, n=6" in space.eliminated[0].reason
    assert not space_of(found, Axes(drafters=()), [silent_on("vllm")]).eliminated


def test_where_nothing_can_run_that_is_wrong_usage_in_the_engines_own_words() -> None:
    ask = Ask.of(engine="fake", methods=("ngram,size=4",), ks=(2, 4, 8), segments=("chat",), requests=4)
    with pytest.raises(UsageError, match="setting of ngram on fake"):
        prospect(ask, Observer(), always=False)


def test_several_values_of_server_settings_give_every_candidate_a_server_of_its_own() -> None:
    ask = Ask.of(
        engine="vllm",
        methods=("draft",),
        drafts=("org/small",),
        ks=(3,),
        target_quants=(None, "fp8"),
        token_budgets=(2048, 4096),
        draft_quants=(None, "fp8"),
    )
    settings = ServerSettings(model="org/large", async_scheduling=False)
    space = space_of(of(ask), _axes(ask))
    spec = _varied(EngineSpec(kind="vllm", settings=settings), space.candidates)
    assert read_engine(json.loads(dumps(plain_object(spec)))) == spec  # a study keeps them
    own = dict(spec.by_arm)
    engine = Varied(
        Vllm(settings, python="python3", version="vllm 0.32.0"),
        {name: Vllm(each, python="python3", version="vllm 0.32.0") for name, each in own.items()},
    )
    by_name = {each.name: each.arm for each in space.candidates}
    assert len([name for name in by_name if name.startswith("baseline")]) == 4
    assert "baseline" not in own
    command = engine.command(by_name["draft-draftfp8-k3-fp8-budget4096"], port=0)
    assert command[command.index("--quantization") + 1] == "fp8"
    assert command[command.index("--max-num-batched-tokens") + 1] == "4096"
    assert '"quantization":"fp8"' in command[command.index("--speculative-config") + 1]
    plain = engine.command(by_name["baseline"], port=0)
    assert "--quantization" not in plain


@pytest.mark.parametrize(
    ("gpu", "fits"), [("l4", False), ("h200", True)], ids=["24 GB of memory", "141 GB of memory"]
)
def test_a_draft_that_leaves_no_room_for_a_request_is_never_launched(
    gpu: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployment, "_device", lambda _ask, _engine: find_gpu(gpu))
    ask = Ask.of(engine="vllm", model="llama-3.1-70b", target_quant="fp8")
    refuse = too_large(ask, ask.server)
    draft = DraftModel(model="llama-3.1-8b", k=3)
    reason = refuse(Candidate(arm=Arm(name="draft-k3", speculation=draft), drafter="draft"))
    assert (reason is None) is fits
    if reason is not None:
        assert reason.startswith("does not fit: ")
    # What loads nothing more than the baseline is not for this to judge, nor what plan knows nothing of.
    assert refuse(Candidate(arm=Arm(name="ngram-k3", speculation=NGram(k=3)), drafter="ngram")) is None
    unknown = DraftModel(model="nobody/knows", k=3)
    assert refuse(Candidate(arm=Arm(name="draft-k3", speculation=unknown), drafter="draft")) is None


def test_the_bundled_draft_is_tried_alone_and_behind_the_look_up_on_its_own_target_alone() -> None:
    own = engine_kind("llamacpp").drafters("smollm2-135m")
    assert [method_name(each) for each in own] == ["ngram", "draft", "ngram+draft", "ngram+draft"]
    assert {method_name(each) for each in engine_kind("llamacpp").drafters("other.gguf")} == {"ngram"}
