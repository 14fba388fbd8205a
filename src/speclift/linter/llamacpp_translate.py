"""A llama.cpp command of any age as today's llama-server command. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence

from speclift.linter.flag_rules import shown
from speclift.linter.llamacpp_flags import FLAG_ROWS, NEWEST, PROGRAMS_GONE, REQUEST_FLAGS, SPEC_TYPES
from speclift.linter.llamacpp_judge import (
    ENVIRONMENT,
    SIZES,
    has_draft_model,
    has_k,
    program_of,
    spec_types,
    today,
)
from speclift.linter.llamacpp_other_flags import CLI
from speclift.linter.pasted import Pasted, Setting
from speclift.linter.translation import Translation, shell_source

# What a draft length was where none was given, before b9235.
K_OLD_DEFAULT = 16


def translate_llamacpp(pasted: Pasted) -> Translation:
    notes: list[str] = []
    program = _program(pasted, notes)
    is_server = program[-1:] == ["llama-server"] or (not program and bool(pasted.wrapper))
    types = list(spec_types(pasted))
    _add_draft_type(pasted, types, notes)
    known = [name for name in types if name in SPEC_TYPES]
    notes += [
        f"--spec-type {name} was left out: llama.cpp has no such type" for name in types if name not in known
    ]
    words: list[str] = []
    for setting in pasted.settings:
        words += _translated(setting, pasted, known, is_server=is_server, notes=notes)
    if known:
        words += ["--spec-type", ",".join(known)]
    words += pasted.carried
    argv = [*pasted.wrapper, *program, *words]
    environment = [
        (ENVIRONMENT.get(name, name), value)
        for name, value in pasted.environment
        if f"{name}={value}" not in pasted.wrapper
    ]
    return Translation(
        argv=tuple(argv),
        source=shell_source(pasted, argv, environment),
        python=_python(argv),
        yaml=_compose_service(argv),
        notes=tuple(dict.fromkeys(notes)),
    )


def _program(pasted: Pasted, notes: list[str]) -> list[str]:
    name = program_of(pasted)
    if not pasted.program:
        return [] if pasted.wrapper else ["llama-server"]
    if name not in PROGRAMS_GONE:
        return list(pasted.program)
    instead = PROGRAMS_GONE[name][0]
    if instead == "llama-server" and name != "server":
        notes.append(
            f"{name} answered one prompt and ended; llama-server keeps both models loaded and serves"
        )
    return [instead]


def _add_draft_type(pasted: Pasted, types: list[str], notes: list[str]) -> None:
    if has_draft_model(pasted) is None or any(name.startswith("draft-") for name in types):
        return
    types.append("draft-simple")
    notes.append("--spec-type draft-simple was added: without it the draft model is loaded and never used")
    if not has_k(pasted):
        notes.append(
            f"k was not given: {K_OLD_DEFAULT} tokens when the command was written for an old build, 3 today;"
            " measure it (speclift decide --k 3,5,8)"
        )


def _translated(
    setting: Setting, pasted: Pasted, types: Sequence[str], *, is_server: bool, notes: list[str]
) -> list[str]:
    row = FLAG_ROWS.get(setting.name)
    if setting.name in ("--spec-type", "--spec-default"):
        return []
    if row is None:
        notes.append(f"{setting.spelled} was left out: llama.cpp has no such flag")
        return []
    name = today(setting.name)
    is_ngram_only = bool(types) and all(each.startswith("ngram-") for each in types)
    if name == "--spec-draft-n-max" and is_ngram_only:
        prefix = next((key for key, owner in SIZES.items() if owner == types[0]), None)
        if prefix is None:
            return []
        name = f"{prefix}{'n-max' if types[0] == 'ngram-mod' else 'size-m'}"
    elif (
        name.startswith("--spec-ngram-simple-")
        and setting.name != name
        and types
        and types[0] != "ngram-simple"
    ):
        name = name.replace("ngram-simple", types[0])
    elif (
        owner := next((kind for key, kind in SIZES.items() if name.startswith(key)), None)
    ) and owner not in types:
        notes.append(f"{setting.spelled} was left out: only --spec-type {owner} reads it")
        return []
    elif row.program == CLI and is_server:
        if setting.name not in REQUEST_FLAGS:
            notes.append(f"{setting.spelled} was left out: llama-server has no such flag")
        return []
    elif is_server and program_of(pasted) in PROGRAMS_GONE and setting.name in REQUEST_FLAGS:
        return []  # a request carries it
    if row.renamed_to is None and row.span.gone is not None and not row.span.holds(NEWEST):
        return _replaced(setting, notes)
    if setting.value is None:
        return [name, "on"] if row.value_since is not None else [name]
    return [name, shown(setting.value)]


def _replaced(setting: Setting, notes: list[str]) -> list[str]:
    row = FLAG_ROWS[setting.name]
    if row.replacement is not None:
        return row.replacement.split()
    notes.append(f"{setting.spelled} was left out: {row.note or 'llama.cpp no longer has it'}")
    return []


def _python(argv: Sequence[str]) -> str:
    listed = "".join(f"    {json.dumps(word)},\n" for word in argv)
    return f"import subprocess\n\nserver = subprocess.Popen([\n{listed}])\n"


def _compose_service(argv: Sequence[str]) -> str:
    """As a container service; JSON strings are YAML strings too."""
    listed = "".join(f"      - {json.dumps(word)}\n" for word in argv[1:])
    return f"services:\n  llama:\n    entrypoint: [{json.dumps(argv[0])}]\n    command:\n{listed}"
