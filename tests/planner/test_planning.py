"""The whole plan, from values alone: pairing rules, findings, candidates, commands."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest

from plan_samples import H200, placed
from speclift.core.results import Level
from speclift.engines.vllm.planning import VllmTerms
from speclift.planner.memory import Layout, Placed
from speclift.planner.plan import Plan
from speclift.planner.planning import plan_deployment
from speclift.planner.prediction import Assumed
from speclift.planner.request import DraftOption, PlanRequest
from speclift.planner.tokens import TokenComparison
from speclift.weights.catalogue_files import find_gpu


def option(model: Placed, *, asked: bool = True, comparison: TokenComparison | None = None) -> DraftOption:
    return DraftOption(
        placed=model, reference=f"org/{model.shape.name}", comparison=comparison, is_asked_for=asked
    )


def request(target: Placed, *drafts: DraftOption, **changes: Any) -> PlanRequest:
    return replace(
        PlanRequest(
            engine=VllmTerms(), device=H200, layout=Layout(context=2048), target=target, reference="org/target",
            drafts=drafts, loads=(1, 8), ks=(1, 3, 5), acceptances=(),
        ),
        **changes,
    )  # fmt: skip


def checks(plan: Plan, level: Level) -> set[str]:
    return {found.check for found in plan.findings if found.level is level}


def message(plan: Plan, check: str) -> str:
    return next(found.message for found in plan.findings if found.check == check)


def test_the_pair_that_s4_recommends_is_accepted_and_priced() -> None:
    plan = plan_deployment(request(placed("llama-3.1-70b", "fp8"), option(placed("llama-3.1-8b"))))

    assert plan.fits
    assert plan.pairing.ratio == pytest.approx(8.79, abs=0.01)
    assert plan.pairing.same_tokenizer is True
    assert "inside the recommended 8 to 12" in message(plan, "size-ratio")
    assert "kv-cost" in checks(plan, Level.WARN)
    assert all(found.source for found in plan.findings)


@pytest.mark.parametrize(
    ("target", "draft", "layout", "said"),
    [
        ("qwen2.5-72b", "qwen2.5-0.5b", {}, "152064"),
        (
            "llama-3.1-70b",
            "llama-3.2-1b",
            {"tensor_parallel": 2, "draft_tensor_parallel": 1},
            "tensor parallelism is 1",
        ),
        ("llama-3.1-70b", "llama-3.2-3b", {"tensor_parallel": 16, "draft_tensor_parallel": 16}, "24 heads"),
    ],
)
def test_what_vllm_would_refuse_is_said_before_it_does(
    target: str, draft: str, layout: dict[str, int], said: str
) -> None:
    own = Layout(context=2048, **layout)  # type: ignore[arg-type]
    plan = plan_deployment(request(placed(target, "fp8"), option(placed(draft)), layout=own))

    assert said in message(plan, "engine-rule")
    assert "engine-rule" in checks(plan, Level.FAIL)
    refused = next(each for each in plan.candidates if each.draft == draft)
    assert not refused.usable


def test_a_draft_that_does_not_fit_beside_its_target_says_that_the_target_does() -> None:
    plan = plan_deployment(
        request(placed("llama-3.1-70b", "int4"), option(placed("qwen2.5-32b")), device=find_gpu("h100"))
    )
    assert not plan.fits
    assert "the target alone fits" in message(plan, "memory")


def test_an_acceptance_of_one_drafter_is_not_lent_to_another() -> None:
    drafts = (option(placed("llama-3.1-8b")), option(placed("llama-3.2-1b"), asked=False))
    plan = plan_deployment(
        request(placed("llama-3.1-70b", "fp8"), *drafts, acceptances=(Assumed(rate=0.8, source="given"),))
    )

    known = {each.draft: each.loads[0].speedup for each in plan.candidates}
    assert known["llama-3.1-8b"] is not None
    assert known["llama-3.2-1b"] is None
    assert known[None] is None


def test_the_next_command_measures_the_asked_draft_and_the_best() -> None:
    drafts = (option(placed("llama-3.1-8b")), option(placed("llama-3.2-1b"), asked=False))
    layout = Layout(context=2048, tensor_parallel=2, draft_tensor_parallel=2, kv_dtype="fp8")
    plan = plan_deployment(request(placed("llama-3.1-70b", "fp8"), *drafts, layout=layout))

    (command,) = plan.next
    words = shlex.split(command)
    assert words[:2] == ["speclift", "decide"]
    assert [words[place + 1] for place, word in enumerate(words) if word == "--draft"] == [
        "org/llama-3.1-8b",
        "org/llama-3.2-1b",
    ]
    for flag, value in (("--tp", "2"), ("--kv-dtype", "fp8"), ("--k", "1,3,5")):
        assert words[words.index(flag) + 1] == value
    assert "--target-quant=fp8" in words
