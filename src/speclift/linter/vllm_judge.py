"""What would this vLLM make of the command? Every flag and key, then the traps that take two of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from speclift.linter.findings import LintFinding, Release, Status, dotted
from speclift.linter.flag_rules import finding, judge_flag, shown
from speclift.linter.pasted import Form, Pasted
from speclift.linter.rows import Span
from speclift.linter.vllm_case import PREFIX
from speclift.linter.vllm_config import check_speculative_config
from speclift.linter.vllm_flags import FLAG_ROWS, OLD_FLAGS_GONE
from speclift.linter.vllm_keys import CONFIG_SINCE, V0_GONE
from speclift.linter.vllm_reading import Reading, read_settings, row_of
from speclift.linter.vllm_values import (
    CLOSEST,
    LOAD_FORMATS_GONE,
    LOADER_SOURCE,
    QUANTISATION_SOURCE,
    QUANTISATIONS,
)

VLLM = "vLLM"
# Keyword arguments of LLM(...) that are no flag of the server.
PYTHON_ONLY = ("--disable-log-stats", "--log-stats", "--usage-context", "--engine-args")
# HTTP 400 as soon as the server has a speculative config (0.32; vLLM issue 42744).
REFUSED_SAMPLING = ("--min-p", "--logit-bias")
# name: lifetime, what to use instead
ENVIRONMENT: dict[str, tuple[Span, str]] = {
    "VLLM_USE_V1": (Span(since=(0, 6, 4), gone=(0, 11, 1)), "V1 is the only engine; leave it out"),
    "VLLM_ATTENTION_BACKEND": (Span(since=(0, 4, 0), gone=(0, 15, 0)), "--attention-backend"),
}


def judge_vllm(pasted: Pasted, *, release: Release, is_cpu: bool = False) -> tuple[LintFinding, ...]:
    reading = read_settings(pasted)
    flags = [
        judge_flag(setting, row_of(setting), release=release, rows=FLAG_ROWS, engine=VLLM)
        for setting in pasted.settings
        if not (pasted.form is Form.PYTHON and setting.name in PYTHON_ONLY)
    ]
    return (
        *flags,
        *reading.faults,
        *_on_config(reading, release, is_cpu=is_cpu),
        *_on_old_acceptance(reading, release),
        *_on_values(reading, release),
        *_on_rest(reading),
        *_on_environment(pasted, release),
        *_on_sampling(reading),
    )


def _on_config(reading: Reading, release: Release, *, is_cpu: bool) -> Iterator[LintFinding]:
    """Findings on the config as a whole; those on a key that a flag carried speak of that flag."""
    if not reading.config:
        return
    if reading.explicit and release < CONFIG_SINCE:
        # The flag itself is unknown to this release, which says it all.
        return
    asked = reading.pasted.last("--async-scheduling")
    settings = [each for each in reading.pasted.settings if each.name == "--async-scheduling"]
    is_async = (not settings[-1].is_off and asked not in (False, "false", "False")) if settings else None
    for found in check_speculative_config(
        reading.config,
        release=max(release, CONFIG_SINCE),
        is_cpu=is_cpu or str(reading.pasted.last("--device")) == "cpu",
        tensor_parallel=reading.number("--tensor-parallel-size"),
        data_parallel=reading.number("--data-parallel-size"),
        max_model_len=reading.number("--max-model-len"),
        has_async_scheduling=is_async,
    ):
        key = found.flag.removeprefix(PREFIX)
        if key in reading.explicit:
            yield found
        elif key not in reading.carried:
            # A key that is missing, spoken of where the release would look for it.
            missing = next(
                (row for row in FLAG_ROWS.values() if row.key == key and row.span.holds(release)), None
            )
            is_old = release < OLD_FLAGS_GONE and missing is not None
            yield found if not is_old or missing is None else _renamed(found, missing.name)
        elif found.status in (Status.CONFLICT, Status.RISKY):
            yield _renamed(found, reading.carried[key][0].spelled)


def _renamed(found: LintFinding, flag: str) -> LintFinding:
    return LintFinding(
        flag=flag,
        status=found.status,
        message=found.message,
        replacement=found.replacement,
        changed_in=found.changed_in,
        source=found.source,
    )


def _on_old_acceptance(reading: Reading, release: Release) -> Iterator[LintFinding]:
    """Where typical acceptance still is, it is lossy."""
    if reading.config.get("acceptance_method") != "typical_acceptance_sampler" or release >= V0_GONE:
        return
    flag = reading.carried["acceptance_method"][0].spelled if "acceptance_method" in reading.carried else ""
    if flag and release >= OLD_FLAGS_GONE:
        return
    yield LintFinding(
        flag=flag or f"{PREFIX}acceptance_method",
        status=Status.RISKY,
        message="lossy: typical acceptance takes tokens that the target would not have drawn",
        source="vllm.model_executor.layers.typical_acceptance_sampler",
    )


def _on_values(reading: Reading, release: Release) -> Iterator[LintFinding]:
    """Names that came and went."""
    for setting in reading.others:
        if setting.name == "--quantization":
            yield from _on_quantisation(setting.spelled, setting.value, release)
        elif setting.name == "--load-format" and shown(setting.value) in LOAD_FORMATS_GONE:
            name = shown(setting.value)
            yield from _gone(setting.spelled, name, LOAD_FORMATS_GONE[name], release, LOADER_SOURCE)
    if "quantization" in reading.config:
        carried = reading.carried.get("quantization")
        flag = carried[0].spelled if carried else f"{PREFIX}quantization"
        yield from _on_quantisation(flag, reading.config["quantization"], release)


def _on_quantisation(flag: str, value: object, release: Release) -> Iterator[LintFinding]:
    if not isinstance(value, str) or "$" in value:
        return
    if value in QUANTISATIONS:
        yield from _gone(flag, value, QUANTISATIONS[value], release, QUANTISATION_SOURCE)
    else:
        yield LintFinding(
            flag=flag,
            status=Status.RISKY,
            message=f"{value!r} is no quantisation that vLLM brings along; only a plug-in could know it",
            source=QUANTISATION_SOURCE,
        )


def _gone(flag: str, name: str, span: Span, release: Release, source: str) -> Iterator[LintFinding]:
    if span.holds(release):
        return
    is_early = release < span.since
    since = span.since if is_early or span.gone is None else span.gone
    yield LintFinding(
        flag=flag,
        status=Status.UNKNOWN if is_early else Status.REMOVED,
        message=f"{name} {'came with' if is_early else 'is gone since'} vLLM {dotted(since)}",
        replacement=None if is_early else CLOSEST.get(name),
        changed_in=dotted(since),
        source=source,
    )


def _on_rest(reading: Reading) -> Iterator[LintFinding]:
    for setting in reading.others:
        if setting.name == "--per-request-spec-decode-metrics" and not reading.is_speculative:
            said = "vLLM refuses it on a server without a speculative config"
            yield finding(setting, Status.CONFLICT, said, source="vllm.config.vllm")
        if not reading.is_speculative:
            continue
        if setting.name == "--max-model-len" and shown(setting.value) in ("auto", "-1"):
            said = (
                "vLLM shrinks the context to what fits, and a draft takes memory: two servers get two lengths"
            )
            yield finding(setting, Status.RISKY, said, source="vllm.engine.arg_utils")
        if setting.name == "--seed" and setting.value not in (None, "0", 0):
            said = (
                "above temperature 0 the same seed gives other text with speculation than without:"
                " compare distributions, not texts"
            )
            yield finding(setting, Status.RISKY, said, source="vllm.v1.sample.rejection_sampler")


def _on_environment(pasted: Pasted, release: Release) -> Iterator[LintFinding]:
    for name, _ in pasted.environment:
        if name in ENVIRONMENT:
            span, closest = ENVIRONMENT[name]
            if span.gone is not None and release >= span.gone:
                yield LintFinding(
                    flag=name,
                    status=Status.REMOVED,
                    message=f"nothing reads this variable since vLLM {dotted(span.gone)}",
                    replacement=closest,
                    changed_in=dotted(span.gone),
                    source="vllm.envs",
                )


def _on_sampling(reading: Reading) -> Iterator[LintFinding]:
    if not reading.is_speculative:
        return
    for setting in reading.pasted.sampling:
        if setting.name in REFUSED_SAMPLING and setting.value not in (None, 0, 0.0, {}):
            said = "a server with a speculative config refuses requests that carry it"
            yield finding(setting, Status.CONFLICT, said, source="vLLM issue 42744")
        elif setting.name == "--seed" and setting.value is not None:
            said = "above temperature 0 the same seed gives other text with speculation than without"
            yield finding(setting, Status.RISKY, said, source="vllm.v1.sample.rejection_sampler")
