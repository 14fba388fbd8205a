"""A llama.cpp command of any age as today's llama-server command. Pure."""

from __future__ import annotations

from speclift.engines.llamacpp.dialect.judgement import (
    K,
    LlamaReading,
    are_ngrams,
    length_flag,
    owner_of,
    today,
)
from speclift.engines.llamacpp.dialect.tables import (
    CLI,
    FLAGS,
    NEWEST,
    PROGRAMS,
    REQUEST_FLAGS,
    TYPES,
    VARIABLES,
)
from speclift.linter.pasted import Setting
from speclift.linter.row_rules import (
    AS_SERVICE,
    Translation,
    compose_service,
    python_launch,
    shell_environment,
    shell_source,
    words_today,
)
from speclift.linter.rows import Row

# What a draft length was where none was given, before b9235.
K_OLD_DEFAULT = 16
# Of the container service.
SERVICE = "llama"


def translate_llamacpp(reading: LlamaReading) -> Translation:
    pasted = reading.pasted
    notes: list[str] = []
    program = _program(reading, notes)
    is_server = program[-1:] == ["llama-server"] or (not program and bool(pasted.wrapper))
    types = _types(reading, notes)
    words: list[str] = []
    for setting in pasted.settings:
        words += _translated(setting, reading, types, is_server=is_server, notes=notes)
    if types:
        words += ["--spec-type", ",".join(types)]
    argv = [*pasted.wrapper, *program, *words, *pasted.carried]
    environment = [(_variable(name), value) for name, value in shell_environment(pasted)]
    return Translation(
        argv=tuple(argv),
        source=shell_source(pasted, argv, environment),
        python=python_launch(argv),
        yaml=compose_service(argv, name=SERVICE),
        yaml_is=AS_SERVICE,
        notes=tuple(dict.fromkeys(notes)),
    )


def _program(reading: LlamaReading, notes: list[str]) -> list[str]:
    if not reading.pasted.program:
        return [] if reading.pasted.wrapper else ["llama-server"]
    row = PROGRAMS.find(reading.program)
    if row is None:
        return list(reading.pasted.program)
    instead = row.renamed_to or row.replacement or row.name
    if instead == "llama-server" and row.renamed_to is None:
        notes.append(f"{row.name} answered one prompt and exited; llama-server keeps both models loaded")
    return [instead]


def _variable(name: str) -> str:
    row = VARIABLES.find(name)
    return name if row is None else row.renamed_to or name


def _types(reading: LlamaReading, notes: list[str]) -> tuple[str, ...]:
    """Those that are known today, with the one that an old draft model went without."""
    types = list(reading.types)
    if reading.draft is not None and not reading.drafting:
        types.append("draft-simple")
        notes.append(
            "--spec-type draft-simple was added: without it the draft model is loaded but never used"
        )
        if not reading.has_k:
            notes.append(
                f"k was not given: {K_OLD_DEFAULT} tokens when the command was written for an old build, 3 today;"
                " measure it (speclift decide --k 3,5,8)"
            )
    notes += [
        f"--spec-type {name} was left out: llama.cpp has no such type" for name in types if name not in TYPES
    ]
    return tuple(name for name in types if name in TYPES)


def _translated(
    setting: Setting, reading: LlamaReading, types: tuple[str, ...], *, is_server: bool, notes: list[str]
) -> list[str]:
    if setting.name in ("--spec-type", "--spec-default"):
        return []
    row = FLAGS.find(setting.name)
    if row is None:
        notes.append(f"{setting.spelled} was left out: llama.cpp has no such flag")
        return []
    name = _name_today(setting, types, notes)
    if name is None or (is_server and _is_for_a_request(setting, row, reading, notes)):
        return []
    return words_today(setting, row, name, FLAGS, NEWEST, notes)


def _name_today(setting: Setting, types: tuple[str, ...], notes: list[str]) -> str | None:
    """The flag that carries its value today; None where nothing reads it any more."""
    name = today(setting.name)
    if name == K and are_ngrams(types):
        return length_flag(types)
    is_renamed = setting.name != name
    if name.startswith("--spec-ngram-simple-") and is_renamed and types and types[0] != "ngram-simple":
        return name.replace("ngram-simple", types[0])
    owner = owner_of(name)
    if owner is not None and owner not in types:
        notes.append(f"{setting.spelled} was left out: only --spec-type {owner} reads it")
        return None
    return name


def _is_for_a_request(setting: Setting, row: Row, reading: LlamaReading, notes: list[str]) -> bool:
    """Whether a server has no such flag: of a program that answered one prompt a request carries it."""
    is_carried = setting.name in REQUEST_FLAGS
    if row.program == CLI:
        if not is_carried:
            notes.append(f"{setting.spelled} was left out: llama-server has no such flag")
        return True
    return is_carried and reading.program in PROGRAMS
