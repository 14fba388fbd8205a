"""llama.cpp's command line: many programs, and every spelling of a flag is a row of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence

from speclift.core.engine_facts import metrics_of
from speclift.core.errors import UsageError
from speclift.engines.llamacpp.dialect.judgement import (
    RULES,
    K,
    LlamaReading,
    are_ngrams,
    is_speculative_flag,
    length_flag,
    owner_of,
    read_llamacpp,
    take_apart_llamacpp,
    today,
)
from speclift.engines.llamacpp.dialect.tables import (
    CLI,
    FLAGS,
    LISTENING,
    NEWEST,
    PROGRAMS,
    REQUEST_FLAGS,
    TYPES,
    VARIABLES,
)
from speclift.linter.dialect import (
    ReadingDialect,
    Spelling,
    Started,
    base_name,
    is_after_flag,
    release_part,
)
from speclift.linter.metrics import MetricNames
from speclift.linter.pasted import Pasted, Setting, TakenApart
from speclift.linter.row_rules import (
    Translation,
    as_service,
    shell_environment,
    words_today,
)
from speclift.linter.rows import Release, Row

# A command of any age as today's llama-server command


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
    return as_service(pasted, argv, environment, name=SERVICE, notes=notes)


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


# The dialect


# Names of the programs before llama.cpp prefixed them; too common to prove anything without a GGUF in sight.
_OLD_PROGRAMS = ("server", "main", "speculative")


class LlamaDialect(ReadingDialect[LlamaReading]):
    rules = RULES
    engine = "llamacpp"
    newest = NEWEST
    flags = FLAGS
    programs = (
        "llama-server", "llama-cli", "llama-run", "llama-speculative", "llama-speculative-simple", "llama-lookup",
        "llama",
    )  # fmt: skip
    examples = ("llama-server",)
    image = re.compile(r"(^|/)llama\.cpp(:|@|$)")
    image_starts = ("llama-server",)
    listening = LISTENING
    metrics = MetricNames.of(metrics_of("llamacpp"), title="llama.cpp")

    def image_release(self, image: str) -> str | None:
        """`ghcr.io/ggml-org/llama.cpp:server-b9000`."""
        match = re.search(r":[\w-]*?(b\d{4,})$", image)
        return None if match is None else match[1]

    def parse_release(self, text: str) -> Release:
        """`b8000`, `8000`."""
        build = re.search(r"\d+(?:\.\d+)*", text)
        # The xllamacpp wheel carries the build as the last part of its version: 2026.10.11549.
        if build is not None:
            return (release_part(build[0].rpartition(".")[2], text),)
        raise UsageError(
            f"--engine-version {text!r} is not a llama.cpp build",
            hint="such as b11549 (llama-server --version)",
        )

    def find_program(
        self, word: str, before: Sequence[str], after: Sequence[str], *, is_asked: bool
    ) -> Started | None:
        name = base_name(word)
        if name in self.programs and not is_after_flag(before):
            has_verb = name == "llama" and after[:1] in (["serve"], ["cli"])
            program = (word, after[0]) if has_verb else (word,)
            return Started(wrapper=before, program=program, arguments=after[len(program) - 1 :])
        if name in _OLD_PROGRAMS and not before and (is_asked or _mentions_gguf(after)):
            return Started(wrapper=before, program=(word,), arguments=after)
        return None

    def find_row(self, spelled: str, release: Release | None) -> Spelling:
        """Underscores for dashes, as its parser takes them."""
        name = spelled.replace("_", "-") if spelled.startswith("--") else spelled
        return name, self.flags.find(name), False

    def read(self, pasted: Pasted, *, version: str = "") -> LlamaReading:
        return read_llamacpp(pasted)

    def speculates(self, reading: LlamaReading) -> bool:
        return bool(reading.draft or reading.types)

    def translate(self, reading: LlamaReading) -> Translation:
        return translate_llamacpp(reading)

    def models(self, pasted: Pasted) -> tuple[str, ...]:
        """Ids of repositories; what files hold is not looked at."""
        named = (pasted.last("-hf", "-hfr", "--hf-repo"), pasted.last("-hfd", "-hfrd", "--hf-repo-draft"))
        return tuple(name.partition(":")[0] for name in named if isinstance(name, str))

    def is_speculation(self, name: str) -> bool:
        return is_speculative_flag(name)

    def taken_apart(self, pasted: Pasted) -> TakenApart:
        return take_apart_llamacpp(pasted)


def _mentions_gguf(words: Sequence[str]) -> bool:
    return any(word.endswith(".gguf") for word in words) or any(
        word in ("-md", "-hf", "-ngl") for word in words
    )


DIALECT = LlamaDialect()
