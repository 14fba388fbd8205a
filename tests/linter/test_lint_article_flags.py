"""Every old flag in circulation, judged for the releases that people run."""

from __future__ import annotations

import pytest

from pasted_commands import LLAMA
from speclift.linter.rows import LintFinding, Status
from speclift.verbs.lint import lint

OK, REMOVED, DEAD, UNKNOWN = Status.OK, Status.REMOVED, Status.DEAD, Status.UNKNOWN
RENAMED, RISKY, CONFLICT = Status.RENAMED, Status.RISKY, Status.CONFLICT

RELEASES = ("0.6", "0.9", "0.16", "0.24", "0.32")
DRAFT = ("--speculative-model", "org/draft", "--num-speculative-tokens", "5")
# The flag with its value, what else the command needs, and the status in each of RELEASES.
FLAGS: list[tuple[tuple[str, ...], tuple[str, ...], tuple[Status, ...]]] = [
    (("--speculative-model", "org/draft"), ("--num-speculative-tokens", "5"), (OK, *[REMOVED] * 4)),
    (("--num-speculative-tokens", "5"), ("--speculative-model", "org/draft"), (OK, *[REMOVED] * 4)),
    (("--speculative-draft-tensor-parallel-size", "1"), DRAFT, (OK, *[REMOVED] * 4)),
    (("--speculative-model-quantization", "fp8"), DRAFT, (OK, *[REMOVED] * 4)),
    (("--speculative-max-model-len", "512"), DRAFT, (OK, *[REMOVED] * 4)),
    (("--speculative-disable-by-batch-size", "8"), DRAFT, (OK, *[REMOVED] * 4)),
    (("--use-v2-block-manager",), DRAFT, (OK, DEAD, REMOVED, REMOVED, REMOVED)),
    (("--spec-decoding-acceptance-method", "typical_acceptance_sampler"), DRAFT, (RISKY, *[REMOVED] * 4)),
    (("--typical-acceptance-sampler-posterior-threshold", "0.09"), DRAFT, (OK, *[REMOVED] * 4)),
    (("--typical-acceptance-sampler-posterior-alpha", "0.3"), DRAFT, (OK, *[REMOVED] * 4)),
    (("--ngram-prompt-lookup-max", "4"), ("--speculative-model", "[ngram]", "--num-speculative-tokens", "5"),
     (OK, *[REMOVED] * 4)),
    (("--disable-logprobs-during-spec-decoding",), DRAFT, (OK, *[REMOVED] * 4)),
    (("--num-lookahead-slots", "5"), DRAFT, (OK, OK, REMOVED, REMOVED, REMOVED)),
    (("--speculative-config", '{"model": "org/draft", "num_speculative_tokens": 5}'), (),
     (UNKNOWN, OK, OK, OK, OK)),
    (("--spec-model", "org/draft"), ("--spec-tokens", "5"), (UNKNOWN, UNKNOWN, UNKNOWN, OK, OK)),
    (("--per-request-spec-decode-metrics", "detailed"),
     ("--speculative-config", '{"model": "org/draft", "num_speculative_tokens": 5}'),
     (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, OK)),
    (("--swap-space", "4"), (), (OK, OK, OK, REMOVED, REMOVED)),
    (("--num-scheduler-steps", "8"), (), (OK, OK, REMOVED, REMOVED, REMOVED)),
    (("--disable-log-requests",), (), (OK, OK, OK, REMOVED, REMOVED)),
    (("--guided-decoding-backend", "xgrammar"), (), (OK, OK, RENAMED, RENAMED, RENAMED)),
    (("--task", "generate"), (), (UNKNOWN, OK, RENAMED, RENAMED, RENAMED)),
    (("--device", "cuda"), (), (OK, OK, REMOVED, REMOVED, REMOVED)),
    (("--quantization", "bitsandbytes"), (), (OK, OK, OK, OK, REMOVED)),
    (("--quantization", "gguf"), (), (OK, OK, OK, REMOVED, REMOVED)),
    (("--never-a-flag", "1"), (), (UNKNOWN,) * 5),
]  # fmt: skip


def about(flag: str, findings: tuple[LintFinding, ...]) -> list[LintFinding]:
    return [found for found in findings if found.flag == flag]


@pytest.mark.parametrize(
    ("words", "others", "release", "status"),
    [
        pytest.param(words, others, release, status, id=f"{words[0]} {release}")
        for words, others, statuses in FLAGS
        for release, status in zip(RELEASES, statuses, strict=True)
    ],
)
def test_a_flag_is_judged_for_its_release(
    words: tuple[str, ...], others: tuple[str, ...], release: str, status: Status
) -> None:
    report = lint(("vllm", "serve", "org/model", *words, *others), engine_version=release)

    assert [found.status for found in about(words[0], report.findings)] == [status]


KEYS: list[tuple[dict[str, object], str, tuple[Status, ...]]] = [
    # 0.9, 0.12, 0.16, 0.24, 0.32
    ({"disable_by_batch_size": 8}, "disable_by_batch_size", (OK, DEAD, DEAD, REMOVED, REMOVED)),
    ({"acceptance_method": "typical_acceptance_sampler"}, "acceptance_method", (RISKY, *[REMOVED] * 4)),
    ({"posterior_alpha": 0.3}, "posterior_alpha", (OK, *[REMOVED] * 4)),
    ({"num_speculative_tokens_per_batch_size": [[1, 8, 5], [9, 64, 0]]}, "num_speculative_tokens_per_batch_size",
     (UNKNOWN, UNKNOWN, UNKNOWN, RISKY, RISKY)),
    ({"draft_sample_method": "probabilistic"}, "draft_sample_method", (*[UNKNOWN] * 3, OK, OK)),
    ({"use_heterogeneous_vocab": True}, "use_heterogeneous_vocab", (*[UNKNOWN] * 4, OK)),
    ({"disable_logprobs": True}, "disable_logprobs", (OK, REMOVED, REMOVED, REMOVED, REMOVED)),
    ({}, "model", (OK, REMOVED, OK, OK, OK)),  # no separate draft model in V1 from 0.10 to 0.14
]  # fmt: skip


@pytest.mark.parametrize(
    ("extra", "key", "release", "status"),
    [
        pytest.param(extra, key, release, status, id=f"{key} {release}")
        for extra, key, statuses in KEYS
        for release, status in zip(("0.9", "0.12", "0.16", "0.24", "0.32"), statuses, strict=True)
    ],
)
def test_a_key_is_judged_for_its_release(
    extra: dict[str, object], key: str, release: str, status: Status
) -> None:
    config = {"model": "org/draft", "num_speculative_tokens": 5, **extra}
    report = lint(f"LLM(model='org/model', speculative_config={config!r})", engine_version=release)

    assert [found.status for found in about(f"speculative_config.{key}", report.findings)] == [status]


BUILDS = ("b4000", "b8000", "b9000", "b9300", "b11549")
LLAMA_FLAGS: list[tuple[tuple[str, ...], tuple[Status, ...]]] = [
    (("-md", "draft.gguf"), (OK, OK, OK, OK, DEAD)),
    (("--draft", "8", "-md", "draft.gguf"), (OK, OK, RENAMED, RENAMED, RENAMED)),
    (("--draft-max", "8", "-md", "draft.gguf"), (UNKNOWN, OK, RENAMED, RENAMED, RENAMED)),
    (("--draft-min", "2", "-md", "draft.gguf"), (UNKNOWN, OK, RENAMED, RENAMED, RENAMED)),
    (("--spec-draft-n-max", "8", "-md", "draft.gguf"), (UNKNOWN, UNKNOWN, OK, OK, OK)),
    (("--draft-p-min", "0.5", "-md", "draft.gguf"), (UNKNOWN, OK, OK, OK, OK)),
    (("-ngld", "99", "-md", "draft.gguf"), (OK, OK, OK, OK, OK)),
    (("-cd", "4096", "-md", "draft.gguf"), (UNKNOWN, OK, OK, REMOVED, REMOVED)),
    (("--spec-type", "ngram-simple"), (UNKNOWN, OK, OK, OK, OK)),
    (("--spec-type", "draft-simple", "-md", "draft.gguf"), (UNKNOWN, UNKNOWN, UNKNOWN, OK, OK)),
    (("--spec-type", "draft-mtp"), (UNKNOWN, UNKNOWN, UNKNOWN, OK, OK)),
    (("--spec-type", "draft"), (UNKNOWN,) * 5),
    (("--spec-ngram-size-n", "6", "--spec-type", "ngram-simple"), (UNKNOWN, OK, RENAMED, RENAMED, RENAMED)),
    (("-fa",), (OK, CONFLICT, CONFLICT, CONFLICT, CONFLICT)),
    (("--no-mmap",), (OK, OK, OK, OK, REMOVED)),
]


@pytest.mark.parametrize(
    ("words", "build", "status"),
    [
        pytest.param(words, build, status, id=f"{' '.join(words[:2])} {build}")
        for words, statuses in LLAMA_FLAGS
        for build, status in zip(BUILDS, statuses, strict=True)
    ],
)
def test_a_llama_cpp_flag_is_judged_for_its_build(words: tuple[str, ...], build: str, status: Status) -> None:
    report = lint(("llama-server", "-m", "target.gguf", *words), engine_version=build)

    assert {found.status for found in about(words[0], report.findings)} == {status}


def test_a_removed_flag_says_when_and_what_instead() -> None:
    report = lint(("vllm", "serve", "m", "--speculative-model", "d", "--num-speculative-tokens", "5"))

    (found,) = about("--speculative-model", report.findings)
    assert found.changed_in == "0.8.3"
    assert found.replacement == """--speculative-config '{"model": "d"}'"""
    assert found.source


@pytest.mark.parametrize(
    "text",
    ["spec_decode_draft_acceptance_rate", "avg(vllm:spec_decode_draft_acceptance_rate) by (model_name)"],
)
def test_the_old_gauge_of_acceptance_is_named_with_what_gives_it_today(text: str) -> None:
    report = lint(text)

    (found,) = report.findings
    assert found.flag in text
    assert (found.flag.removeprefix("vllm:"), found.status) == ("spec_decode_draft_acceptance_rate", REMOVED)
    assert "spec_decode_num_accepted_tokens_total" in str(found.replacement)
    assert not report.ok
    assert report.translated is None


def test_a_draft_model_without_a_type_is_caught_with_the_build_that_changed_it() -> None:
    report = lint(LLAMA["server with a draft model"])

    (found,) = about("-md", report.findings)
    assert found.changed_in == "b9464"
    assert found.replacement == "-md draft.gguf --spec-type draft-simple"
    assert not report.ok
