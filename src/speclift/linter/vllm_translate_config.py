"""A speculative config of any age as today's vLLM takes it, and what was lost. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from speclift.linter.rows import FlagKind
from speclift.linter.vllm_case import method_of
from speclift.linter.vllm_keys import KEY_ROWS, NEWEST
from speclift.linter.vllm_schedule import SCHEDULE, schedule_fault
from speclift.linter.vllm_values import CLOSEST, QUANTISATIONS

K = "num_speculative_tokens"
K_START = 5  # where the tuning guides start [S0 S3]
BATCH_MAX = 4096  # larger than any batch vLLM forms by itself; the last range also carries on beyond its end
# V0 took 1 for a lower end that was not given; V1 takes the upper end.
LOOKUP_MIN_V0 = 1
FIRST_KEYS = ("method", "model", K)


def translate_config(
    config: Mapping[str, object],
    *,
    tensor_parallel: int | None,
    max_model_len: int | None,
    is_from_flags: bool,
) -> tuple[dict[str, object], list[str]]:
    """Today's keys in reading order, and notes. `is_from_flags`: it was the old flags, with V0's defaults."""
    given = {name.replace("-", "_"): value for name, value in config.items() if value is not None}
    notes: list[str] = []
    method = method_of(given, NEWEST)
    today: dict[str, object] = {"method": method}
    if given.get("model") and method not in ("ngram", "ngram_gpu", "suffix"):
        today["model"] = given["model"]
    _translate_k(given, method, today, notes)
    if method in ("ngram", "ngram_gpu") and is_from_flags and "prompt_lookup_max" in given:
        given.setdefault("prompt_lookup_min", LOOKUP_MIN_V0)
    _translate_batch_limit(given, today, notes)
    _translate_acceptance(given, today, notes)
    _translate_draft(given, method, tensor_parallel, max_model_len, today, notes)
    handled = {*FIRST_KEYS, "disable_by_batch_size", *_ACCEPTANCE, *_DRAFT}
    for name, value in given.items():
        if name not in handled:
            _keep_or_drop(name, value, method, today, notes)
    return today, notes


def _translate_k(
    given: Mapping[str, object], method: str, today: dict[str, object], notes: list[str]
) -> None:
    k = given.get(K)
    if isinstance(k, int) and not isinstance(k, bool) and k > 0:
        today[K] = k
    elif k is not None and not isinstance(k, int):
        today[K] = k  # an expression or a variable
    elif method != "suffix":
        today[K] = K_START
        notes.append(
            f"k was not given; {K_START} is where the guides start: measure it (speclift decide --k 3,5,7)"
        )


def _translate_batch_limit(given: Mapping[str, object], today: dict[str, object], notes: list[str]) -> None:
    limit, k = given.get("disable_by_batch_size"), today.get(K)
    if limit is None:
        return
    if not isinstance(limit, int) or not isinstance(k, int):
        notes.append(f"disable_by_batch_size is gone; {SCHEDULE} with k = 0 above that size comes closest")
        return
    today[SCHEDULE] = [[1, limit, k], [limit + 1, max(BATCH_MAX, limit + 1), 0]]
    notes.append(
        f"disable_by_batch_size {limit} became {SCHEDULE}: k = {k} up to {limit} requests in a step, none above."
        " It is looked up in every step, not per new request, so measure at the threshold"
    )


_ACCEPTANCE = (
    "acceptance_method",
    "posterior_threshold",
    "posterior_alpha",
    "rejection_sample_method",
    "synthetic_acceptance_rate",
    "draft_sample_method",
)


def _translate_acceptance(given: Mapping[str, object], today: dict[str, object], notes: list[str]) -> None:
    if given.get("acceptance_method") == "typical_acceptance_sampler" or "posterior_threshold" in given:
        notes.append(
            "typical acceptance has no equivalent: it changed the output. Closest is the standard rejection"
            " sampling, which keeps it; draft_sample_method probabilistic raises acceptance above temperature 0"
        )
    sampler = given.get("rejection_sample_method")
    if sampler in ("strict", "probabilistic"):
        notes.append(f"rejection_sample_method {sampler} is called standard since 0.21")
    elif sampler is not None:
        today["rejection_sample_method"] = sampler
    drafting = "probabilistic" if sampler == "probabilistic" else given.get("draft_sample_method")
    if drafting is not None:
        today["draft_sample_method"] = drafting
    rate, k = given.get("synthetic_acceptance_rate"), today.get(K)
    if isinstance(rate, (int, float)) and isinstance(k, int):
        today["synthetic_acceptance_rates"] = [round(float(rate) ** (index + 1), 6) for index in range(k)]
        notes.append("synthetic_acceptance_rate became the list of unconditional rates, one per position")


_DRAFT = ("tensor_parallel_size", "draft_tensor_parallel_size", "quantization", "max_model_len")


def _translate_draft(
    given: Mapping[str, object],
    method: str,
    tensor_parallel: int | None,
    max_model_len: int | None,
    today: dict[str, object],
    notes: list[str],
) -> None:
    target = tensor_parallel or 1
    draft = given.get("draft_tensor_parallel_size", given.get("tensor_parallel_size"))
    if draft is not None and draft != target and (method == "draft_model" or draft != 1):
        notes.append(
            f"a draft on {draft} of {target} GPUs has no equivalent: today's runner wants the draft on as many"
            " GPUs as the target, and takes that where nothing is said"
        )
    elif draft is not None and draft != target:
        today["draft_tensor_parallel_size"] = draft
    quantisation = given.get("quantization")
    if isinstance(quantisation, str) and not _is_quantisation(quantisation):
        notes.append(f"a {quantisation} draft has no equivalent; closest: {closest(quantisation)}")
    elif quantisation is not None:
        today["quantization"] = quantisation
    length = given.get("max_model_len")
    if isinstance(length, int) and max_model_len is not None and length > max_model_len:
        notes.append(
            f"max_model_len {length} of the draft is above the target's {max_model_len} and was left out"
        )
    elif length is not None:
        today["max_model_len"] = length


def _is_quantisation(name: str) -> bool:
    return name in QUANTISATIONS and QUANTISATIONS[name].holds(NEWEST)


def closest(quantisation: str) -> str:
    return CLOSEST.get(quantisation, "a checkpoint quantised for vLLM, whose config says how")


def _keep_or_drop(name: str, value: object, method: str, today: dict[str, object], notes: list[str]) -> None:
    row = KEY_ROWS.get(name)
    if row is None or row.kind is FlagKind.INTERNAL or not row.span.holds(NEWEST):
        notes.append(
            f"{name} was left out: {row.note if row is not None and row.note else 'vLLM has no such key'}"
        )
    elif row.methods and method not in row.methods:
        notes.append(f"{name} was left out: {method} does not read it")
    elif name == SCHEDULE and schedule_fault(value) is not None:
        notes.append(f"{name} was left out: {schedule_fault(value)}")
    else:
        today[name] = value
