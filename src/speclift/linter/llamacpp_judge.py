"""What would this llama.cpp make of the command? Every flag, then the traps that take two of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from speclift.linter.findings import LintFinding, Release, Status, dotted, nearest
from speclift.linter.flag_rules import finding, judge_flag, shown
from speclift.linter.llamacpp_flags import (
    DEFAULTS,
    FLAG_ROWS,
    KEPT_ALIASES,
    NO_IMPLIED_DRAFT,
    PROGRAMS_GONE,
    RENAMES,
    SELF_SPECULATION,
    SPEC_TYPES,
    TYPES,
)
from speclift.linter.llamacpp_other_flags import CLI
from speclift.linter.pasted import Pasted, Setting

LLAMA = "llama.cpp"
K_NAMES = ("--spec-draft-n-max", "--draft-max", "--draft", "--draft-n")
# name: replacement; both were read by flags that are hard errors since the renames
ENVIRONMENT = {
    "LLAMA_ARG_DRAFT_MAX": "LLAMA_ARG_SPEC_DRAFT_N_MAX",
    "LLAMA_ARG_DRAFT_MIN": "LLAMA_ARG_SPEC_DRAFT_N_MIN",
}
K_VARIABLES = {"LLAMA_ARG_DRAFT_MAX", "LLAMA_ARG_SPEC_DRAFT_N_MAX"}
# Sizes that belong to a type: without the type they are read by nothing.
SIZES = {
    "--spec-ngram-simple-": "ngram-simple",
    "--spec-ngram-map-k4v-": "ngram-map-k4v",
    "--spec-ngram-map-k-": "ngram-map-k",
    "--spec-ngram-mod-": "ngram-mod",
}


def today(name: str) -> str:
    """A flag's newest name."""
    row = FLAG_ROWS.get(name)
    if row is None:
        return name
    return row.renamed_to or KEPT_ALIASES.get(row.name, row.name)


def program_of(pasted: Pasted) -> str:
    return PurePosixPath(pasted.program[0]).name.removesuffix(".exe") if pasted.program else "llama-server"


def judge_llamacpp(pasted: Pasted, *, release: Release) -> tuple[LintFinding, ...]:
    flags = [
        judge_flag(setting, FLAG_ROWS.get(setting.name), release=release, rows=FLAG_ROWS, engine=LLAMA)
        for setting in pasted.settings
    ]
    return (
        *_on_program(pasted, release),
        *flags,
        *_on_foreign_flags(pasted),
        *_on_types(pasted, release),
        *_on_draft(pasted, release),
        *_on_sizes(pasted, release),
        *_on_synthetic(pasted),
        *_on_environment(pasted, release),
    )


def spec_types(pasted: Pasted) -> tuple[str, ...]:
    """Every type asked for; a repeated --spec-type adds."""
    listed = [
        part.strip()
        for setting in pasted.settings
        if setting.name == "--spec-type"
        for part in shown(setting.value).split(",")
    ]
    listed += dict(pasted.environment).get("LLAMA_ARG_SPEC_TYPE", "").split(",")
    if any(setting.name == "--spec-default" for setting in pasted.settings):
        listed.append("ngram-mod")
    return tuple(name for name in dict.fromkeys(listed) if name and name != "none")


def has_k(pasted: Pasted) -> bool:
    by_environment = {name for name, _ in pasted.environment} & K_VARIABLES
    return bool(by_environment) or any(setting.name in K_NAMES for setting in pasted.settings)


def has_draft_model(pasted: Pasted) -> Setting | None:
    names = ("--spec-draft-model", "--spec-draft-hf")
    return next((setting for setting in pasted.settings if today(setting.name) in names), None)


def _on_program(pasted: Pasted, release: Release) -> Iterator[LintFinding]:
    name = program_of(pasted)
    if name in PROGRAMS_GONE and release >= PROGRAMS_GONE[name][1]:
        instead, since, why = PROGRAMS_GONE[name]
        yield LintFinding(
            flag=name,
            status=Status.RENAMED if why == "renamed" else Status.REMOVED,
            message=f"{why} (b{since[0]})",
            replacement=instead,
            changed_in=dotted(since),
            source="llama.cpp PR 7809" if since[0] < 5000 else "llama.cpp .github/workflows/release.yml",
        )


def _on_foreign_flags(pasted: Pasted) -> Iterator[LintFinding]:
    if program_of(pasted) not in ("llama-server", "server"):
        return
    for setting in pasted.settings:
        row = FLAG_ROWS.get(setting.name)
        if row is not None and row.program == CLI:
            yield finding(
                setting,
                Status.CONFLICT,
                "llama-cli has this flag, llama-server refuses it",
                source=row.source,
            )


def _on_types(pasted: Pasted, release: Release) -> Iterator[LintFinding]:
    for setting in pasted.settings:
        if setting.name != "--spec-type" or setting.value is None or release < SELF_SPECULATION:
            continue
        names = [name.strip() for name in shown(setting.value).split(",")]
        if len(names) > 1 and release < TYPES:
            said = f"lists of types came with b{TYPES[0]}"
            yield finding(setting, Status.CONFLICT, said, changed_in=TYPES, source="llama.cpp PR 22964")
        for name in names:
            yield from _on_type(setting, name, release)


def _on_type(setting: Setting, name: str, release: Release) -> Iterator[LintFinding]:
    if name not in SPEC_TYPES:
        near = nearest(name, SPEC_TYPES) or ("draft-simple" if name == "draft" else None)
        said = f"no type {name!r}" + (f"; did you mean {near}?" if near else "")
        known = ", ".join(each for each, since in SPEC_TYPES.items() if release >= since)
        yield finding(
            setting, Status.UNKNOWN, f"{said} ({known})", replacement=near and f"--spec-type {near}"
        )
    elif release < SPEC_TYPES[name]:
        since = SPEC_TYPES[name]
        yield finding(setting, Status.UNKNOWN, f"type {name} came with b{since[0]}", changed_in=since)
    elif name == "ngram-mod":
        said = "one pool of n-grams for all slots and requests: what is accepted depends on what was asked before"
        yield finding(setting, Status.RISKY, said, source="llama.cpp common/speculative.cpp")


def _on_draft(pasted: Pasted, release: Release) -> Iterator[LintFinding]:
    draft, types = has_draft_model(pasted), spec_types(pasted)
    drafting = [name for name in types if name.startswith("draft-")]
    if draft is not None and not drafting and release >= NO_IMPLIED_DRAFT:
        said = (
            "the draft model is loaded and never used: there is no --spec-type, and since"
            f" b{NO_IMPLIED_DRAFT[0]} a draft model alone is none (MTP, DFlash and DSpark files name their type)"
            if not types
            else f"the draft model is never used: --spec-type {','.join(types)} drafts without one"
        )
        yield finding(
            draft,
            Status.DEAD,
            said,
            replacement=f"{draft.spelled} {shown(draft.value)} --spec-type {','.join((*types, 'draft-simple'))}",
            changed_in=NO_IMPLIED_DRAFT,
            source="llama.cpp PR 23988",
        )
    if draft is None and any(name in ("draft-simple", "draft-eagle3", "draft-dflash") for name in drafting):
        asked = next(setting for setting in pasted.settings if setting.name == "--spec-type")
        said = f"{drafting[0]} has no draft model: the server starts without speculation and says so only in its log"
        yield finding(
            asked,
            Status.CONFLICT,
            said,
            replacement="--spec-draft-model DRAFT.gguf",
            source="llama.cpp common/speculative.cpp",
        )
    if (
        draft is not None
        and (drafting or release < NO_IMPLIED_DRAFT)
        and not has_k(pasted)
        and release >= DEFAULTS
    ):
        said = f"k is not given: since b{DEFAULTS[0]} that is 3 drafted tokens, and was 16 before"
        yield LintFinding(
            flag="--spec-draft-n-max",
            status=Status.RISKY,
            message=said,
            replacement="--spec-draft-n-max 5",
            changed_in=dotted(DEFAULTS),
            source="llama.cpp PR 23269",
        )


def _on_sizes(pasted: Pasted, release: Release) -> Iterator[LintFinding]:
    types = spec_types(pasted)
    if release < RENAMES:
        return
    for setting in pasted.settings:
        owner = next((name for prefix, name in SIZES.items() if setting.name.startswith(prefix)), None)
        if owner is not None and owner not in types:
            said = f"only --spec-type {owner} reads it, and it is not asked for"
            yield finding(setting, Status.DEAD, said, replacement=f"--spec-type {owner}")
        elif (
            setting.name == "--spec-draft-n-max"
            and types
            and all(name.startswith("ngram-") for name in types)
        ):
            said = "does not limit n-gram drafts: their length is size-m, or n-max of ngram-mod"
            prefix = next((key for key, name in SIZES.items() if name == types[0]), None)
            size = f"{prefix}{'n-max' if types[0] == 'ngram-mod' else 'size-m'} {shown(setting.value)}"
            yield finding(setting, Status.DEAD, said, replacement=size if prefix else None)
        elif (
            setting.name == "--spec-ngram-mod-n-match"
            and shown(setting.value).isdigit()
            and int(shown(setting.value)) < 16
        ):
            yield finding(setting, Status.RISKY, "under 16 llama.cpp itself warns of poor drafts")


def _on_synthetic(pasted: Pasted) -> Iterator[LintFinding]:
    given = [setting for setting in pasted.settings if setting.name.startswith("--spec-synth-")]
    if len({setting.name for setting in given}) > 1:
        yield finding(
            given[-1], Status.CONFLICT, "--spec-synth-len and --spec-synth-rates exclude each other"
        )
    if given and not spec_types(pasted):
        yield finding(given[0], Status.CONFLICT, "there is no speculation whose acceptance it could force")


def _on_environment(pasted: Pasted, release: Release) -> Iterator[LintFinding]:
    for name, _ in pasted.environment:
        if name in ENVIRONMENT and release >= RENAMES:
            yield LintFinding(
                flag=name,
                status=Status.RENAMED,
                message=f"stops the server since b{RENAMES[0]}: it stands for a flag that is gone",
                replacement=ENVIRONMENT[name],
                changed_in=dotted(RENAMES),
                source="llama.cpp common/arg.cpp",
            )
