"""A speculative config with what surrounds it, the method vLLM takes it for, and findings on its keys. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from speclift.linter.findings import LintFinding, Release, Status, dotted
from speclift.linter.vllm_keys import CONFIG, METHOD_ROWS

PREFIX = "speculative_config."
# A model name that holds one of these is taken for that method, in this order (config/speculative.py).
NAMED_AFTER = (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark"))


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


def known_methods(release: Release) -> tuple[str, ...]:
    return tuple(row.name for row in METHOD_ROWS.values() if row.holds(release))


def method_of(config: Mapping[str, object], release: Release) -> str:
    """The method vLLM settles on, by its own rules (config/speculative.py, __post_init__)."""
    method = config.get("method")
    model = str(config.get("model") or "")
    if isinstance(method, str):
        row = METHOD_ROWS.get(method)
        renamed = row is not None and row.renamed_to and row.renamed_in and release >= row.renamed_in
        return (row.renamed_to or method) if row is not None and renamed else method.strip("[]")
    if model in ("ngram", "[ngram]"):
        return "ngram"
    if METHOD_ROWS["custom_class"].holds(release) and "." in model and _is_import_path(model):
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
    return LintFinding(
        flag=f"{PREFIX}{key}",
        status=status,
        message=message,
        replacement=replacement,
        changed_in=None if changed_in is None else dotted(changed_in),
        source=source,
    )


def are_numbers(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(
        isinstance(each, (int, float)) and not isinstance(each, bool) for each in value
    )
