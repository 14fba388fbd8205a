"""What differs between the engines' command lines: programs, spelling, releases, and who judges them. Pure.

The rest of the linter asks a dialect and never an engine's name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol, TypeAlias

from speclift.core.errors import UsageError
from speclift.linter import llamacpp_flags, vllm_flags, vllm_keys
from speclift.linter.findings import LintFinding, Release
from speclift.linter.llamacpp_judge import judge_llamacpp, read_llamacpp
from speclift.linter.llamacpp_translate import translate_llamacpp
from speclift.linter.pasted import Engine, Pasted
from speclift.linter.rows import NameTable, Row
from speclift.linter.translation import Translation
from speclift.linter.vllm_judge import judge_vllm
from speclift.linter.vllm_reading import CONFIG_FLAG, read_settings
from speclift.linter.vllm_translate import translate_vllm

_VLLM_MODULE = re.compile(r"vllm(\.entrypoints\..*)?")
VLLM_PROGRAMS = ("vllm",)
LLAMA_PROGRAMS = (
    "llama-server", "llama-cli", "llama-run", "llama-speculative", "llama-speculative-simple", "llama-lookup", "llama",
)  # fmt: skip
# Names of the programs before llama.cpp prefixed them; too common to prove anything without a GGUF in sight.
LLAMA_PROGRAMS_OLD = ("server", "main", "speculative")
DIGITS_MAX = 9  # of a part of a release


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A program with what stands before it and its arguments."""

    wrapper: Sequence[str]
    program: Sequence[str]
    arguments: Sequence[str]


# The table's name of a flag (with the key after a dot, if any), its row, and whether it is a --no- form.
Spelling: TypeAlias = tuple[str, Row | None, bool]
Judgement: TypeAlias = tuple[tuple[LintFinding, ...], Translation]


class Dialect(Protocol):
    """One engine's command line."""

    engine: Engine
    newest: Release
    flags: NameTable
    image: re.Pattern[str]  # of a container whose entry point is the server
    takes_model_by_place: bool
    is_python: bool  # it can be started from Python, and has metrics that changed
    glued: re.Pattern[str] | None  # a flag and its value in one word
    config_flag: str | None  # it takes a dict
    keys: NameTable | None  # of that dict

    def parse_release(self, text: str) -> Release: ...

    def find_program(
        self, word: str, before: Sequence[str], after: Sequence[str], *, is_asked: bool
    ) -> Started | None:
        """Whether this word starts the engine; `is_asked` where the user named it, so that less proves enough."""

    def plain_name(self, flag: str) -> str:
        """As the table has it, without a key after a dot."""

    def find_row(self, spelled: str, release: Release | None) -> Spelling: ...

    def judge(self, pasted: Pasted, release: Release, *, is_cpu: bool) -> Judgement:
        """What a release makes of it, and what it is today: two answers from one reading."""


class VllmDialect:
    """argparse's, with dashes and underscores alike, beginnings for the whole, and keys after dots."""

    engine: Engine = "vllm"
    newest: Release = vllm_keys.NEWEST
    flags: NameTable = vllm_flags.FLAGS
    image: re.Pattern[str] = re.compile(r"(^|/)(vllm-openai|vllm)[\w.-]*(:|@|$)")
    takes_model_by_place: bool = True
    is_python: bool = True
    glued: re.Pattern[str] | None = re.compile(r"(-O)(\d)")
    config_flag: str | None = CONFIG_FLAG
    keys: NameTable | None = vllm_keys.KEYS

    def parse_release(self, text: str) -> Release:
        """`0.24`, `v0.24.0`, `0.32.0+cpu`, `vllm 0.10.1.1`."""
        match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
        if match is None:
            raise UsageError(f"--engine-version {text!r} names no vLLM release", hint="such as 0.24.0")
        return (_number(match[1], text), _number(match[2], text), _number(match[3] or "0", text))

    def find_program(
        self, word: str, before: Sequence[str], after: Sequence[str], *, is_asked: bool
    ) -> Started | None:
        if _base_name(word) in VLLM_PROGRAMS and not _is_after_flag(before):
            if after[:1] == ["serve"]:
                return Started(wrapper=before, program=("vllm", "serve"), arguments=after[1:])
            if not after or after[0].startswith("-"):
                return Started(wrapper=before, program=("vllm",), arguments=after)
        if word == "-m" and after and _VLLM_MODULE.fullmatch(after[0]) and before and "python" in before[-1]:
            program = (before[-1], "-m", after[0])
            return Started(wrapper=before[:-1], program=program, arguments=after[1:])
        return None

    def plain_name(self, flag: str) -> str:
        return _vllm_name(flag).partition(".")[0]

    def find_row(self, spelled: str, release: Release | None) -> Spelling:
        table, name = self.flags, _vllm_name(spelled)
        head, dot, key = name.partition(".")
        row = table.find("--compilation-config" if head == "-O" else head)
        if row is not None:
            return row.name + dot + key, row, False
        row = table.find(f"--{head.removeprefix('--no-')}") if head.startswith("--no-") else None
        if row is not None:
            return row.name, row, True
        row = _completed(head, table, release)
        return (name if row is None else row.name + dot + key), row, False

    def judge(self, pasted: Pasted, release: Release, *, is_cpu: bool) -> Judgement:
        reading = read_settings(pasted)
        return judge_vllm(reading, release=release, is_cpu=is_cpu), translate_vllm(reading)


class LlamaDialect:
    """Every spelling is a row of its own."""

    engine: Engine = "llamacpp"
    newest: Release = llamacpp_flags.NEWEST
    flags: NameTable = llamacpp_flags.FLAGS
    image: re.Pattern[str] = re.compile(r"(^|/)llama\.cpp(:|@|$)")
    takes_model_by_place: bool = False
    is_python: bool = False
    glued: re.Pattern[str] | None = None
    config_flag: str | None = None
    keys: NameTable | None = None

    def parse_release(self, text: str) -> Release:
        """`b8000`, `8000`."""
        build = re.search(r"\d+(?:\.\d+)*", text)
        # The xllamacpp wheel carries the build as the last part of its version: 2026.10.11549.
        if build is not None:
            return (_number(build[0].rpartition(".")[2], text),)
        raise UsageError(
            f"--engine-version {text!r} names no llama.cpp build",
            hint="such as b11549 (llama-server --version)",
        )

    def find_program(
        self, word: str, before: Sequence[str], after: Sequence[str], *, is_asked: bool
    ) -> Started | None:
        name = _base_name(word)
        if name in LLAMA_PROGRAMS and not _is_after_flag(before):
            has_verb = name == "llama" and after[:1] in (["serve"], ["cli"])
            program = (word, after[0]) if has_verb else (word,)
            return Started(wrapper=before, program=program, arguments=after[len(program) - 1 :])
        if name in LLAMA_PROGRAMS_OLD and not before and (is_asked or _mentions_gguf(after)):
            return Started(wrapper=before, program=(word,), arguments=after)
        return None

    def plain_name(self, flag: str) -> str:
        return flag

    def find_row(self, spelled: str, release: Release | None) -> Spelling:
        return spelled, self.flags.find(spelled), False

    def judge(self, pasted: Pasted, release: Release, *, is_cpu: bool) -> Judgement:
        reading = read_llamacpp(pasted)
        return judge_llamacpp(reading, release=release), translate_llamacpp(reading)


def _base_name(word: str) -> str:
    return PurePosixPath(word.replace("\\", "/")).name.removesuffix(".exe")


def _is_after_flag(before: Sequence[str]) -> bool:
    """Whether the word is the value of a flag, as in `--name vllm`."""
    return bool(before) and before[-1].startswith("-") and before[-1] not in ("--",)


def _mentions_gguf(words: Sequence[str]) -> bool:
    return any(word.endswith(".gguf") for word in words) or any(
        word in ("-md", "-hf", "-ngl") for word in words
    )


def _vllm_name(spelled: str) -> str:
    """vLLM takes dashes and underscores alike up to the first dot."""
    if not spelled.startswith("--"):
        return spelled
    head, dot, key = spelled.partition(".")
    return head.replace("_", "-") + dot + key


def _completed(head: str, table: NameTable, release: Release | None) -> Row | None:
    """argparse takes an unambiguous beginning for the whole."""
    if not head.startswith("--"):
        return None
    longer = {
        row.name: row
        for known, row in table.rows.items()
        if known.startswith(head) and (release is None or row.holds(release))
    }
    return longer.popitem()[1] if len(longer) == 1 else None


def _number(digits: str, text: str) -> int:
    if len(digits) > DIGITS_MAX:
        raise UsageError(f"--engine-version {text[:40]!r} is no release", hint="such as 0.24.0 or b11549")
    return int(digits)


VLLM, LLAMACPP = VllmDialect(), LlamaDialect()
DIALECTS: dict[str, Dialect] = {VLLM.engine: VLLM, LLAMACPP.engine: LLAMACPP}


def dialects(engine: Engine | None) -> tuple[Dialect, ...]:
    """The one that was asked for, or all that come into question."""
    return tuple(DIALECTS.values()) if engine is None else (DIALECTS[engine],)
