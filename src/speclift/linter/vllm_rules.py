"""Which keys of a vLLM speculative config do not go together, with each other or with the rest of the command?
One function per rule, all of them in RULES. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TypeAlias

from speclift.linter.findings import LintFinding, Release, Status, dotted, nearest
from speclift.linter.vllm_case import Case, about, are_numbers, known_methods, named_after
from speclift.linter.vllm_keys import (
    CONFIG,
    CONFIG_SINCE,
    CPU_SPECULATION_SINCE,
    DRAFT_MODEL_BACK,
    METHOD_ROWS,
    SCHEDULE_SINCE,
    V0_GONE,
)
from speclift.linter.vllm_schedule import SCHEDULE, schedule_fault

K = "num_speculative_tokens"
# They switch async scheduling off, which a baseline keeps (config/vllm.py, 0.32).
WITHOUT_ASYNC = ("ngram", "suffix", "medusa", "custom_class")
ASYNC_WITH_SPECULATION: Release = (0, 14, 0)


def _unknown_method(case: Case) -> Iterator[LintFinding]:
    release = case.release
    given = case.config.get("method")
    if release < CONFIG_SINCE or not isinstance(given, str):
        if release >= CONFIG_SINCE and given is None and not METHOD_ROWS[case.method].holds(release):
            yield from _absent_method(case.method, release, flag="model")
        return
    row = METHOD_ROWS.get(given.strip("[]"))
    if row is None:
        names = known_methods(release)
        near = nearest(given, names)
        said = f"vLLM has no method {given!r}" + (f"; did you mean {near}?" if near else "")
        yield about("method", Status.UNKNOWN, f"{said} ({', '.join(_shown(names))})", replacement=near)
    elif not row.holds(release):
        yield from _absent_method(row.name, release, flag="method")
    elif row.renamed_to and row.renamed_in and release >= row.renamed_in:
        yield about(
            "method",
            Status.RENAMED,
            f"{row.name} is called {row.renamed_to} since vLLM {dotted(row.renamed_in)}; still accepted",
            replacement=f'"method": "{row.renamed_to}"',
            changed_in=row.renamed_in,
            source=row.source,
        )


def _shown(names: tuple[str, ...]) -> list[str]:
    """Without the per-family names of mtp."""
    return [name for name in names if not METHOD_ROWS[name].renamed_to]


def _absent_method(method: str, release: Release, *, flag: str) -> Iterator[LintFinding]:
    row = METHOD_ROWS[method]
    later = next((span.since for span in row.spans if span.since > release), None)
    gone = max((span.gone for span in row.spans if span.gone and span.gone <= release), default=None)
    status = Status.REMOVED if gone else Status.UNKNOWN
    said = f"vLLM {dotted(release)} has no {method}"
    if gone:
        said += f": gone since {dotted(gone)}"
    if later:
        said += f"; {'back' if gone else 'it came'} with {dotted(later)}"
    closest = f"vLLM {dotted(later)} or newer" if later else None
    yield about(
        flag,
        status,
        said + (f" ({row.note})" if row.note else ""),
        replacement=closest,
        changed_in=gone or later,
        source=row.source,
    )


def _missing_model(case: Case) -> Iterator[LintFinding]:
    row = METHOD_ROWS.get(case.method)
    if row is not None and row.needs_model and not case.config.get("model"):
        yield about(
            "model", Status.CONFLICT, f"{case.method} needs a model, and none is given", source=CONFIG
        )
    model = str(case.config.get("model") or "")
    implied = named_after(model)
    if case.config.get("method") == "draft_model" and implied and case.release >= CONFIG_SINCE:
        yield about(
            "model",
            Status.RISKY,
            f"vLLM takes a draft whose name holds {implied!r} for {implied}, whatever the method says",
            source=CONFIG,
        )


def _missing_k(case: Case) -> Iterator[LintFinding]:
    if K in case.config or case.method == "suffix":  # suffix takes its tree depth
        return
    if case.config.get("model") and case.method in (
        "mtp",
        "dspark",
        "eagle",
        "eagle3",
        "medusa",
        "mlp_speculator",
        "dflash",
    ):
        yield about(
            K,
            Status.RISKY,
            "not given: vLLM takes n_predict or the block size of the head's config.json, and fails without one",
            replacement=f'"{K}": 3',
            source=CONFIG,
        )
        return
    yield about(
        K,
        Status.CONFLICT,
        f"not given, and {case.method} has no default: vLLM does not start",
        replacement=f'"{K}": 5',
        source=CONFIG,
    )


def _tensor_parallel(case: Case) -> Iterator[LintFinding]:
    draft, target = case.config.get("draft_tensor_parallel_size"), case.tensor_parallel
    if not isinstance(draft, int) or isinstance(draft, bool) or draft < 1:
        return
    target = 1 if target is None else target
    if draft not in (1, target):
        said = f"a draft runs on 1 GPU or on as many as its target ({target}), saw {draft}"
    elif case.method == "draft_model" and draft != target and case.release >= DRAFT_MODEL_BACK:
        said = f"the V1 runner wants a draft model on as many GPUs as its target ({target}), saw {draft}"
    else:
        return
    yield about(
        "draft_tensor_parallel_size",
        Status.CONFLICT,
        said,
        replacement="leave it out: the draft then takes the target's size",
        source="vllm.v1.spec_decode.draft_model; vllm.config.speculative",
    )


def _lookup_window(case: Case) -> Iterator[LintFinding]:
    low, high = case.config.get("prompt_lookup_min"), case.config.get("prompt_lookup_max")
    if case.method not in ("ngram", "ngram_gpu"):
        return
    if isinstance(low, int) and isinstance(high, int) and low > high:
        yield about(
            "prompt_lookup_min",
            Status.CONFLICT,
            f"prompt_lookup_min {low} is above prompt_lookup_max {high}",
            source=CONFIG,
        )
    elif low is None and high is None and case.release >= V0_GONE:
        yield about(
            "prompt_lookup_max",
            Status.RISKY,
            "neither end of the n-gram window is given: vLLM looks 5 tokens up and nothing shorter",
            replacement='"prompt_lookup_min": 2, "prompt_lookup_max": 5',
            source=CONFIG,
        )


def _synthetic(case: Case) -> Iterator[LintFinding]:
    rates, length = (
        case.config.get("synthetic_acceptance_rates"),
        case.config.get("synthetic_acceptance_length"),
    )
    sampler, k = case.config.get("rejection_sample_method"), case.config.get(K)
    if sampler != "synthetic":
        for name, value in (("synthetic_acceptance_rates", rates), ("synthetic_acceptance_length", length)):
            if value is not None:
                yield about(
                    name, Status.CONFLICT, 'only with "rejection_sample_method": "synthetic"', source=CONFIG
                )
        return
    said = "forced acceptance: the text is meaningless; for what-if measurements only, never for users"
    status = Status.RISKY
    if case.is_cpu:
        status, said = Status.CONFLICT, "the CPU build starts, and its first request ends it"
    yield about("rejection_sample_method", status, said, source="vllm.v1.sample.rejection_sampler")
    if case.release < (0, 20, 0):
        return
    if (rates is None) == (length is None):
        yield about(
            "synthetic_acceptance_rates",
            Status.CONFLICT,
            "synthetic wants exactly one of synthetic_acceptance_rates and synthetic_acceptance_length",
            source=CONFIG,
        )
    elif are_numbers(rates) and isinstance(rates, (list, tuple)):
        if isinstance(k, int) and len(rates) != k:
            fault = f"one rate per position: k is {k}, saw {len(rates)}"
        elif any(later > before for before, later in pairwise(rates)):
            fault = "rates are unconditional, so none may exceed the one before it"
        else:
            return
        yield about("synthetic_acceptance_rates", Status.CONFLICT, fault, source=CONFIG)
    elif isinstance(length, (int, float)) and isinstance(k, int) and length > k + 1:
        yield about(
            "synthetic_acceptance_length",
            Status.CONFLICT,
            f"at most k + 1 = {k + 1}, saw {length}",
            source=CONFIG,
        )


def _heterogeneous_vocab(case: Case) -> Iterator[LintFinding]:
    if case.config.get("use_heterogeneous_vocab") is not True:
        return
    if case.method != "draft_model":
        said = f"only for draft_model, and this is {case.method}"
    elif case.config.get("draft_sample_method", "greedy") != "greedy":
        said = "only with greedy drafting"
    else:
        return
    yield about("use_heterogeneous_vocab", Status.CONFLICT, said, source=CONFIG)


def _suffix(case: Case) -> Iterator[LintFinding]:
    if case.method == "suffix" and METHOD_ROWS["suffix"].holds(case.release):
        yield about(
            "method",
            Status.RISKY,
            "suffix decoding needs a package that vLLM does not bring along",
            replacement="pip install arctic-inference==0.1.1",
            source=CONFIG,
        )


def _only_for_its_method(case: Case) -> Iterator[LintFinding]:
    """Keys that vLLM refuses, not ignores, under another method."""
    for name, owner in (("index_share_for_mtp_iteration", "mtp"), ("dspark_draft_topk", "dspark")):
        if name in case.config and case.method != owner:
            yield about(
                name, Status.CONFLICT, f"only with method {owner}, and this is {case.method}", source=CONFIG
            )
    both = ("enable_adaptive_verification", "use_local_argmax_reduction")
    if all(case.config.get(name) is True for name in both) and case.method != "dspark":
        said = "reads the draft's logits, which use_local_argmax_reduction never builds"
        yield about("enable_adaptive_verification", Status.CONFLICT, said, source=CONFIG)


def _block(case: Case) -> Iterator[LintFinding]:
    if case.config.get("rejection_sample_method") == "block" and case.release >= (0, 25, 0):
        if case.is_cpu:
            said, status = "the CPU build never looks at it and verifies as standard does", Status.DEAD
        else:
            said, status = (
                "only the V2 runner knows it; the V1 runner verifies as standard does",
                Status.RISKY,
            )
        yield about("rejection_sample_method", status, said, source="vllm.v1.sample.rejection_sampler")


def _schedule(case: Case) -> Iterator[LintFinding]:
    """vLLM checks the schedule only as its engine core starts, minutes after the config was accepted."""
    schedule, source = case.config.get(SCHEDULE), "vllm.v1.spec_decode.dynamic.utils"
    if schedule is None or case.release < SCHEDULE_SINCE:
        return
    fault = schedule_fault(schedule)
    if fault is not None:
        yield about(
            SCHEDULE, Status.CONFLICT, fault, replacement="[[1, 16, 5], [17, 4096, 0]]", source=source
        )
        return
    if case.data_parallel is not None and case.data_parallel > 1:
        yield about(SCHEDULE, Status.DEAD, "vLLM drops it under data parallelism", source="vllm.config.vllm")
        return
    yield about(
        SCHEDULE,
        Status.RISKY,
        "costs full CUDA graphs on the V1 runner, and throughput fell at a threshold before:"
        " measure at its thresholds",
        source=f"{source}; vLLM issue 49548",
    )


def _max_model_len(case: Case) -> Iterator[LintFinding]:
    draft, target = case.config.get("max_model_len"), case.max_model_len
    if not isinstance(draft, int) or isinstance(draft, bool):
        return
    if target is not None and draft > target:
        yield about(
            "max_model_len", Status.CONFLICT, f"above the target's {target}, saw {draft}", source=CONFIG
        )
    elif (0, 26, 0) <= case.release < (0, 27, 0):
        yield about("max_model_len", Status.DEAD, "0.26 does not act on it", source="vLLM issue 52258")


def _platform(case: Case) -> Iterator[LintFinding]:
    if not case.is_cpu:
        return
    if CONFIG_SINCE <= case.release < CPU_SPECULATION_SINCE:
        yield about(
            "method",
            Status.CONFLICT,
            f"speculation on a CPU came with vLLM {dotted(CPU_SPECULATION_SINCE)}",
            changed_in=CPU_SPECULATION_SINCE,
            source="vllm.v1.worker.cpu_worker",
        )
    elif case.method == "ngram_gpu":
        yield about(
            "method", Status.CONFLICT, "the CPU build has no pinned memory for it", replacement="ngram"
        )


def _async_scheduling(case: Case) -> Iterator[LintFinding]:
    if case.method not in WITHOUT_ASYNC or case.is_cpu or case.release < ASYNC_WITH_SPECULATION:
        return
    if case.has_async_scheduling is None:
        yield about(
            "method",
            Status.RISKY,
            f"{case.method} switches async scheduling off, a server without speculation keeps it:"
            " what that costs is part of the price of this method",
            source="vllm.config.vllm",
        )
    elif case.has_async_scheduling:
        yield about(
            "method",
            Status.CONFLICT,
            f"{case.method} cannot run with --async-scheduling",
            source="vllm.config.vllm",
        )


# The runner filled the keys of its drafters' CUDA graphs, but not those of a separate draft model (PR 47460).
DRAFT_GRAPHS_SINCE: Release = (0, 26, 0)
# Up to 0.28 at least the newer runner left draft models to the older one.
DRAFT_ON_NEW_RUNNER: Release = (0, 32, 0)


def _draft_outside_graphs(case: Case) -> Iterator[LintFinding]:
    if case.method != "draft_model" or case.is_cpu:
        return
    if DRAFT_MODEL_BACK <= case.release < DRAFT_GRAPHS_SINCE:
        yield about(
            "method",
            Status.RISKY,
            "a separate draft model runs outside CUDA graphs in this version: about 275 kernel launches per drafted"
            " token, a step of 31 ms where 0.26 takes 17 (1B draft of an 8B target, k=5, H200)",
            replacement=f"vLLM {dotted(DRAFT_GRAPHS_SINCE)} or newer",
            changed_in=DRAFT_GRAPHS_SINCE,
            source="vLLM PR 47460; docs/gpu.md",
        )
    elif case.release >= DRAFT_ON_NEW_RUNNER:
        yield about(
            "method",
            Status.RISKY,
            "the newer model runner, the default on GPUs, drafts with a separate model outside CUDA graphs; the older"
            " one has them",
            replacement="VLLM_USE_V2_MODEL_RUNNER=0 in the environment, and measure both",
            changed_in=DRAFT_ON_NEW_RUNNER,
            source="vllm.v1.worker.gpu.spec_decode, 0.32.0; docs/gpu.md",
        )


Rule: TypeAlias = Callable[[Case], Iterator[LintFinding]]

RULES: tuple[Rule, ...] = (
    _unknown_method,
    _missing_model,
    _missing_k,
    _tensor_parallel,
    _lookup_window,
    _synthetic,
    _block,
    _heterogeneous_vocab,
    _suffix,
    _only_for_its_method,
    _schedule,
    _max_model_len,
    _platform,
    _async_scheduling,
    _draft_outside_graphs,
)
