"""What a study makes of the user's own line: the arm `yours` in the space, and what plan knows would not run."""

from __future__ import annotations

import pytest

from speclift.bench import deployment
from speclift.bench.ask import Ask
from speclift.bench.search_space import require_fit, space_of, wanted, with_yours
from speclift.core.arm import YOURS
from speclift.core.errors import WillNotRun
from speclift.core.speculation import Combined, DraftModel, NGram
from speclift.search.space import Axes, Space
from speclift.verbs.user_command import from_line
from speclift.weights.catalogue_files import find_gpu


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


LINE = (
    "vllm serve meta-llama/Llama-3.1-70B-Instruct --quantization fp8 --max-model-len 4096 --speculative-config "
    '\'{"method": "draft_model", "model": "meta-llama/Llama-3.2-1B-Instruct", "num_speculative_tokens": 3}\''
)


class TestFitting:
    @pytest.mark.parametrize(("gpu", "fits"), [("l4", False), ("h200", True)])
    def test_a_line_that_does_not_fit_is_not_launched(
        self, gpu: str, fits: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(deployment, "_device", lambda _ask, _engine: find_gpu(gpu))
        ask = Ask.of(**from_line(LINE))
        if fits:
            require_fit(ask, ask.server)
        else:
            with pytest.raises(WillNotRun, match="does not fit"):
                require_fit(ask, ask.server)

    def test_a_pair_that_the_engine_refuses_is_not_launched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(deployment, "_device", lambda _ask, _engine: find_gpu("h200"))
        ask = Ask.of(**from_line(LINE.replace("meta-llama/Llama-3.2-1B-Instruct", "Qwen/Qwen2.5-0.5B")))
        with pytest.raises(WillNotRun, match="would not run"):
            require_fit(ask, ask.server)

    def test_what_plan_knows_nothing_of_is_left_to_the_engine(self) -> None:
        ask = Ask.of(**from_line("vllm serve nobody/knows"))
        require_fit(ask, ask.server)
