"""Would vLLM take this speculative config, and would it mean what it says? Judged key by key from the table, then as
a whole: one function per rule, all of them in RULES. Pure: models are not looked at, so a size or a vocabulary that
differs is not seen here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from speclift.engines.vllm.dialect.tables import (
    CONFIG,
    CONFIG_SINCE,
    CPU_SPECULATION_SINCE,
    DRAFT_MODEL_BACK,
    KEYS,
    METHODS,
    SCHEDULE,
    SCHEDULE_SINCE,
    SYNTHETIC_SINCE,
    V0_GONE,
    schedule_fault,
)
from speclift.linter.pasted import Setting
from speclift.linter.row_rules import are_numbers, fault, finding, is_whole, unknown
from speclift.linter.rows import LintFinding, Release, Row, Status, dotted, nearest

PREFIX = "speculative_config."
K = "num_speculative_tokens"
# A model name that holds one of these is taken for that method, in this order (config/speculative.py).
NAMED_AFTER = (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark"))
# They switch async scheduling off, which a baseline keeps (config/vllm.py, 0.32).
WITHOUT_ASYNC = ("ngram", "suffix", "medusa", "custom_class")
ASYNC_WITH_SPECULATION: Release = (0, 14, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One config on one release, with what of the rest of the command matters to it; None is not known."""

    config: Mapping[str, object]
    method: str
    release: Release
    is_cpu: bool = False
    tensor_parallel: int | None = None
    data_parallel: int | None = None
    max_model_len: int | None = None
    has_async_scheduling: bool | None = None


def check_speculative_config(
    config: Mapping[str, object],
    *,
    release: Release,
    is_cpu: bool = False,
    tensor_parallel: int | None = None,
    data_parallel: int | None = None,
    max_model_len: int | None = None,
    has_async_scheduling: bool | None = None,
) -> tuple[LintFinding, ...]:
    """One finding per key, then those about their combination; `is_error` tells the ones vLLM refuses or
    ignores from the rest."""
    # Dashes in keys are vLLM's to normalise, and a null is the same as an absent key.
    given = {name.replace("-", "_"): value for name, value in config.items() if value is not None}
    case = Case(
        config=given,
        method=method_of(given, release),
        release=release,
        is_cpu=is_cpu,
        tensor_parallel=tensor_parallel,
        data_parallel=data_parallel,
        max_model_len=max_model_len,
        has_async_scheduling=has_async_scheduling,
    )
    wholes = [found for rule in RULES for found in rule(case)]
    spoken_for = {found.flag for found in wholes}
    # A combination's fault says more about its key than that the key is fine or unread.
    keys = [
        found
        for found in (_judge_key(name, value, case) for name, value in given.items())
        if found.flag not in spoken_for or found.status not in (Status.OK, Status.DEAD)
    ]
    return (*keys, *wholes)


def method_of(config: Mapping[str, object], release: Release) -> str:
    """The method vLLM settles on, by its own rules (config/speculative.py, __post_init__)."""
    method = config.get("method")
    if isinstance(method, str):
        row = METHODS.find(method)
        is_renamed = row is not None and row.is_renamed(release)
        return str(row.renamed_to) if row is not None and is_renamed else method.strip("[]")
    model = str(config.get("model") or "")
    if model in ("ngram", "[ngram]"):
        return "ngram"
    if METHODS["custom_class"].holds(release) and "." in model and _is_import_path(model):
        return "custom_class"
    return named_after(model) or "draft_model"


def named_after(model: str) -> str | None:
    return next((method for part, method in NAMED_AFTER if part in model.lower()), None)


def _is_import_path(model: str) -> bool:
    return all(part.isidentifier() for part in model.split("."))


def about(
    key: str,
    status: Status,
    message: str,
    *,
    replacement: str | None = None,
    changed_in: Release | None = None,
    source: str = CONFIG,
) -> LintFinding:
    """A finding on a key of the config."""
    return finding(
        _setting(key), status, message, replacement=replacement, changed_in=changed_in, source=source
    )


def _setting(key: str, value: object = None) -> Setting:
    return Setting(name=key, spelled=f"{PREFIX}{key}", value=value)


def _judge_key(name: str, value: object, case: Case) -> LintFinding:
    row, setting = KEYS.find(name), _setting(name, value)
    if row is None:
        return unknown(setting, KEYS, case.release)
    if case.release < CONFIG_SINCE:
        return about(
            name,
            Status.UNKNOWN,
            f"needs vLLM {dotted(CONFIG_SINCE)} or newer; older releases use flags for speculation",
            changed_in=CONFIG_SINCE,
            source=row.source,
        )
    return fault(setting, row, KEYS, case.release) or _use(setting, row, case.method)


def _use(setting: Setting, row: Row, method: str) -> LintFinding:
    if row.methods and method not in row.methods:
        said = f"{method} ignores it; only {', '.join(row.methods)} read it"
        return finding(setting, Status.DEAD, said, source=row.source)
    return finding(setting, Status.OK, "", source=row.source)


# What does not go together, with each other or with the rest of the command


def _unknown_method(case: Case) -> Iterator[LintFinding]:
    release, given = case.release, case.config.get("method")
    if release < CONFIG_SINCE:
        return
    if not isinstance(given, str):
        if given is None and not METHODS[case.method].holds(release):
            yield _absent_method(METHODS[case.method], release, key="model")
        return
    row = METHODS.find(given.strip("[]"))
    if row is None:
        names = METHODS.names_at(release)
        near = nearest(given, names)
        said = f"vLLM has no method {given!r}" + (f"; did you mean {near}?" if near else "")
        own = (name for name in names if not METHODS[name].renamed_to)  # without the per-family names of mtp
        yield about("method", Status.UNKNOWN, f"{said} ({', '.join(own)})", replacement=near)
    elif not row.holds(release):
        yield _absent_method(row, release, key="method")
    elif row.is_renamed(release):
        yield about(
            "method",
            Status.RENAMED,
            f"{row.name} is called {row.renamed_to} since vLLM {dotted(row.renamed_in or ())}; still accepted",
            replacement=f'"method": "{row.renamed_to}"',
            changed_in=row.renamed_in,
            source=row.source,
        )


def _absent_method(row: Row, release: Release, *, key: str) -> LintFinding:
    later, gone = row.comes_after(release), row.gone_by(release)
    said = f"vLLM {dotted(release)} has no {row.name}"
    if gone:
        said += f": removed in {dotted(gone)}"
    if later:
        said += f"; {'back' if gone else 'new'} in {dotted(later)}"
    return about(
        key,
        Status.REMOVED if gone else Status.UNKNOWN,
        said + (f" ({row.note})" if row.note else ""),
        replacement=f"vLLM {dotted(later)} or newer" if later else None,
        changed_in=gone or later,
        source=row.source,
    )


def _missing_model(case: Case) -> Iterator[LintFinding]:
    row = METHODS.find(case.method)
    if row is not None and row.needs_model and not case.config.get("model"):
        yield about("model", Status.CONFLICT, f"{case.method} needs a model", source=CONFIG)
    model = str(case.config.get("model") or "")
    implied = named_after(model)
    if case.config.get("method") == "draft_model" and implied and case.release >= CONFIG_SINCE:
        yield about(
            "model",
            Status.RISKY,
            f"the name contains {implied!r}: vLLM uses method {implied}, whatever is given here",
        )


_K_IN_THE_HEAD = ("mtp", "dspark", "eagle", "eagle3", "medusa", "mlp_speculator", "dflash")


def _missing_k(case: Case) -> Iterator[LintFinding]:
    if K in case.config or case.method == "suffix":  # suffix takes its tree depth
        return
    if case.config.get("model") and case.method in _K_IN_THE_HEAD:
        yield about(
            K,
            Status.RISKY,
            "not given: vLLM reads n_predict or the block size from the head's config.json, and fails if it has none",
            replacement=f'"{K}": 3',
        )
        return
    yield about(
        K,
        Status.CONFLICT,
        f"not given: {case.method} has no default, so vLLM does not start",
        replacement=f'"{K}": 5',
    )


def _tensor_parallel(case: Case) -> Iterator[LintFinding]:
    draft, target = case.config.get("draft_tensor_parallel_size"), case.tensor_parallel
    if not is_whole(draft) or draft < 1:
        return
    target = 1 if target is None else target
    if draft not in (1, target):
        said = f"must be 1 or the target's size ({target}), saw {draft}"
    elif case.method == "draft_model" and draft != target and case.release >= DRAFT_MODEL_BACK:
        said = f"the V1 runner needs the target's size ({target}) for a draft model, saw {draft}"
    else:
        return
    yield about(
        "draft_tensor_parallel_size",
        Status.CONFLICT,
        said,
        replacement="leave it out: the draft then uses the target's size",
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
        )
    elif low is None and high is None and case.release >= V0_GONE:
        yield about(
            "prompt_lookup_max",
            Status.RISKY,
            "no n-gram window is given: vLLM looks up exactly 5 tokens",
            replacement='"prompt_lookup_min": 2, "prompt_lookup_max": 5',
        )


def _synthetic(case: Case) -> Iterator[LintFinding]:
    if case.config.get("rejection_sample_method") != "synthetic":
        for name in ("synthetic_acceptance_rates", "synthetic_acceptance_length"):
            if name in case.config:
                yield about(name, Status.CONFLICT, 'only with "rejection_sample_method": "synthetic"')
        return
    said = "forced acceptance: the text is meaningless; for what-if measurements only, never for users"
    status = Status.RISKY
    if case.is_cpu:
        status, said = Status.CONFLICT, "the CPU build starts, but crashes at the first request"
    yield about("rejection_sample_method", status, said, source="vllm.v1.sample.rejection_sampler")
    if case.release >= SYNTHETIC_SINCE:
        yield from _forced_acceptance(case)


def _forced_acceptance(case: Case) -> Iterator[LintFinding]:
    rates, length = (
        case.config.get("synthetic_acceptance_rates"),
        case.config.get("synthetic_acceptance_length"),
    )
    k = case.config.get(K)
    if (rates is None) == (length is None):
        yield about(
            "synthetic_acceptance_rates",
            Status.CONFLICT,
            "synthetic needs exactly one of synthetic_acceptance_rates and synthetic_acceptance_length",
        )
    elif are_numbers(rates):
        if isinstance(k, int) and len(rates) != k:
            said = f"one rate per position: k is {k}, saw {len(rates)}"
            yield about("synthetic_acceptance_rates", Status.CONFLICT, said)
        elif any(later > before for before, later in pairwise(rates)):
            said = "rates are unconditional, so they must not rise"
            yield about("synthetic_acceptance_rates", Status.CONFLICT, said)
    elif isinstance(length, (int, float)) and isinstance(k, int) and length > k + 1:
        said = f"at most k + 1 = {k + 1}, saw {length}"
        yield about("synthetic_acceptance_length", Status.CONFLICT, said)


def _heterogeneous_vocab(case: Case) -> Iterator[LintFinding]:
    if case.config.get("use_heterogeneous_vocab") is not True:
        return
    if case.method != "draft_model":
        said = f"only for method draft_model, this is {case.method}"
    elif case.config.get("draft_sample_method", "greedy") != "greedy":
        said = "only with greedy drafting"
    else:
        return
    yield about("use_heterogeneous_vocab", Status.CONFLICT, said)


def _suffix(case: Case) -> Iterator[LintFinding]:
    if case.method == "suffix" and METHODS["suffix"].holds(case.release):
        yield about(
            "method",
            Status.RISKY,
            "suffix decoding needs a package that vLLM does not install",
            replacement="pip install arctic-inference==0.1.1",
        )


def _only_for_its_method(case: Case) -> Iterator[LintFinding]:
    """Keys that vLLM refuses, not ignores, under another method."""
    for name, owner in (("index_share_for_mtp_iteration", "mtp"), ("dspark_draft_topk", "dspark")):
        if name in case.config and case.method != owner:
            yield about(
                name, Status.CONFLICT, f"only for method {owner}, this is {case.method}", source=CONFIG
            )
    both = ("enable_adaptive_verification", "use_local_argmax_reduction")
    if all(case.config.get(name) is True for name in both) and case.method != "dspark":
        said = "needs the draft's logits, which use_local_argmax_reduction does not compute"
        yield about("enable_adaptive_verification", Status.CONFLICT, said)


def _block(case: Case) -> Iterator[LintFinding]:
    if case.config.get("rejection_sample_method") == "block" and case.release >= (0, 25, 0):
        if case.is_cpu:
            said, status = "the CPU build ignores it and uses standard", Status.DEAD
        else:
            said, status = (
                "only the V2 runner supports it; the V1 runner uses standard",
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
        yield about(SCHEDULE, Status.DEAD, "vLLM ignores it with data parallelism", source="vllm.config.vllm")
        return
    yield about(
        SCHEDULE,
        Status.RISKY,
        "disables full CUDA graphs on the V1 runner, and throughput can drop at a threshold:"
        " measure at its thresholds",
        source=f"{source}; vLLM issue 49548",
    )


def _max_model_len(case: Case) -> Iterator[LintFinding]:
    draft, target = case.config.get("max_model_len"), case.max_model_len
    if not is_whole(draft):
        return
    if target is not None and draft > target:
        yield about(
            "max_model_len",
            Status.CONFLICT,
            f"must not be above the target's {target}, saw {draft}",
            source=CONFIG,
        )
    elif (0, 26, 0) <= case.release < (0, 27, 0):
        yield about("max_model_len", Status.DEAD, "0.26 ignores it", source="vLLM issue 52258")


def _platform(case: Case) -> Iterator[LintFinding]:
    if not case.is_cpu:
        return
    if CONFIG_SINCE <= case.release < CPU_SPECULATION_SINCE:
        yield about(
            "method",
            Status.CONFLICT,
            f"speculation on a CPU needs vLLM {dotted(CPU_SPECULATION_SINCE)} or newer",
            changed_in=CPU_SPECULATION_SINCE,
            source="vllm.v1.worker.cpu_worker",
        )
    elif case.method == "ngram_gpu":
        yield about(
            "method",
            Status.CONFLICT,
            "the CPU build does not support it (no pinned memory)",
            replacement="ngram",
        )


def _async_scheduling(case: Case) -> Iterator[LintFinding]:
    if case.method not in WITHOUT_ASYNC or case.is_cpu or case.release < ASYNC_WITH_SPECULATION:
        return
    if case.has_async_scheduling is None:
        yield about(
            "method",
            Status.RISKY,
            f"{case.method} turns async scheduling off; a server without speculation keeps it:"
            " the loss is part of the cost of this method",
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
            "a separate draft model runs outside CUDA graphs in this version: about 275 kernel launches per draft"
            " token, a step of 31 ms instead of 17 ms in 0.26 (1B draft, 8B target, k=5, H200)",
            replacement=f"vLLM {dotted(DRAFT_GRAPHS_SINCE)} or newer",
            changed_in=DRAFT_GRAPHS_SINCE,
            source="vLLM PR 47460; docs/gpu.md",
        )
    elif case.release >= DRAFT_ON_NEW_RUNNER:
        yield about(
            "method",
            Status.RISKY,
            "the newer model runner, the default on GPUs, runs a separate draft model without CUDA graphs; the older"
            " one uses them",
            replacement="set VLLM_USE_V2_MODEL_RUNNER=0 in the environment, and measure both",
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
