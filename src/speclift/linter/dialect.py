"""The engines' command lines where they differ: programs, spelling, releases, and who judges them. Pure.

Each engine's folder says this of itself, and the rest of the linter asks a dialect and never an engine's name. What a
dialect does not say of itself is what most are like: a program with flags, judged row by row.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Generic, TypeAlias, TypeVar

from speclift.core.errors import UsageError, unknown_name
from speclift.linter.metrics import MetricNames
from speclift.linter.pasted import Pasted, TakenApart
from speclift.linter.row_rules import Translation, judge_flag, translate_by_rows
from speclift.linter.rows import LintFinding, NameTable, Release, Row, Status, dotted

DIGITS_MAX = 9  # of a part of a release
# Of sudo, env and docker exec: what takes no value, so that a program may follow.
_BEFORE_A_PROGRAM = ("--", "-E", "-H", "-i", "-t", "-it", "-d", "--rm", "--preserve-env", "--login")


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A program with what stands before it and its arguments."""

    wrapper: Sequence[str]
    program: Sequence[str]
    arguments: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NestedConfig:
    """A dict that one flag takes. Whoever pastes it alone is recognised by one of the `telling` keys."""

    flag: str
    keys: NameTable
    telling: frozenset[str]


# The table's name of a flag (with the key after a dot, if any), its row, and whether it is a --no- form.
Spelling: TypeAlias = tuple[str, Row | None, bool]
Judgement: TypeAlias = tuple[tuple[LintFinding, ...], Translation]


Reading = TypeVar("Reading")


class Dialect:
    """One engine's command line."""

    engine: str
    newest: Release
    flags: NameTable
    programs: tuple[str, ...] = ()
    # How it is started, for somebody whose text starts nothing; the programs where nothing else does.
    examples: tuple[str, ...] = ()
    image: re.Pattern[str] | None = None  # of a container whose entry point is the server
    image_starts: tuple[str, ...] = ()  # that entry point
    takes_model_by_place = False
    listening: frozenset[str] = frozenset()  # flags: where it listens, and who may ask
    glued: re.Pattern[str] | None = None  # a flag and its value in one word
    config: NestedConfig | None = None
    python_makers: tuple[str, ...] = ()  # calls that make the engine in a Python program
    python_sampling = ""  # the call that holds a request's sampling settings
    metrics: MetricNames | None = None

    @property
    def title(self) -> str:
        return self.flags.engine

    @property
    def newest_text(self) -> str:
        """The newest release as its engine says it."""
        return f"{self.engine} {dotted(self.newest)}"

    def image_release(self, image: str) -> str | None:
        """The release that a container image is pinned to; None where it does not say."""
        return None

    def parse_release(self, text: str) -> Release:
        """`1.2.3`, `v7`."""
        match = re.search(r"\d+(?:\.\d+)*", text)
        if match is None:
            raise UsageError(f"--engine-version {text!r} is not a release of {self.title}")
        return tuple(release_part(part, text) for part in match[0].split("."))

    def find_program(
        self, word: str, before: Sequence[str], after: Sequence[str], *, is_asked: bool
    ) -> Started | None:
        """The program that starts here, if any; where the user named the engine (`is_asked`), less proves enough."""
        if base_name(word) in self.programs and not is_after_flag(before):
            return Started(wrapper=before, program=(word,), arguments=after)
        return None

    def plain_name(self, flag: str) -> str:
        """The name that the table has, without a key after a dot."""
        return flag

    def find_row(self, spelled: str, release: Release | None) -> Spelling:
        return spelled, self.flags.find(spelled), False

    def is_speculative(self, pasted: Pasted) -> bool:
        """True if it asks for speculation; of several servers in one text those are shown first."""
        return False

    def models(self, pasted: Pasted) -> tuple[str, ...]:
        """The target and the draft, as they are named."""
        return () if pasted.model is None else (pasted.model,)

    def is_speculation(self, name: str) -> bool:
        """True if a flag of any age asks for speculation, or says how."""
        return False

    def taken_apart(self, pasted: Pasted) -> TakenApart:
        """A command of today: its model, its speculation, and what else it says of the server."""
        raise UsageError(
            f"{self.title} cannot be launched from a command line", hint="start it and use --engine attach"
        )

    def judge(self, pasted: Pasted, release: Release, *, version: str) -> Judgement:
        """The findings for a release, and the command of today, from one reading.

        `version` is the release as the user said it, which may tell more than its numbers; empty where unsaid.
        """
        findings = (
            judge_flag(setting, self.flags.find(setting.name), self.flags, release)
            for setting in pasted.settings
        )
        program = () if pasted.wrapper and not pasted.program else pasted.program or self.programs[:1]
        return tuple(findings), translate_by_rows(pasted, program, self.flags, self.newest)


class ReadingDialect(Dialect, Generic[Reading]):
    """The steps of an engine in whose command one word depends on others: read once, then judged by rules, in their
    order, and translated."""

    rules: Sequence[Callable[[Reading, Release], Iterable[LintFinding]]] = ()

    @abstractmethod
    def read(self, pasted: Pasted, *, version: str = "") -> Reading: ...

    @abstractmethod
    def speculates(self, reading: Reading) -> bool: ...

    @abstractmethod
    def translate(self, reading: Reading) -> Translation: ...

    def is_speculative(self, pasted: Pasted) -> bool:
        return self.speculates(self.read(pasted))

    def judge(self, pasted: Pasted, release: Release, *, version: str) -> Judgement:
        reading = self.read(pasted, version=version)
        findings = (finding for rule in self.rules for finding in rule(reading, release))
        return tuple(findings), self.translate(reading)


@dataclass(frozen=True, slots=True)
class Dialects:
    """All that are known here, and the one that was asked for."""

    known: tuple[Dialect, ...]
    asked: Dialect | None = None

    @property
    def in_question(self) -> tuple[Dialect, ...]:
        return self.known if self.asked is None else (self.asked,)

    @property
    def engines(self) -> tuple[str, ...]:
        return tuple(dialect.engine for dialect in self.known)

    def of(self, engine: str) -> Dialect:
        for dialect in self.known:
            if dialect.engine == engine:
                return dialect
        raise unknown_name(what="engine", seen=engine, allowed=self.engines)


def base_name(word: str) -> str:
    return PurePosixPath(word.replace("\\", "/")).name.removesuffix(".exe")


def is_after_flag(before: Sequence[str]) -> bool:
    """True if the word is the value of a flag, as in `--name vllm`."""
    return bool(before) and before[-1].startswith("-") and before[-1] not in _BEFORE_A_PROGRAM


def release_part(digits: str, text: str) -> int:
    if len(digits) > DIGITS_MAX:
        raise UsageError(f"--engine-version {text[:40]!r} is not a release", hint="such as 0.24.0 or b11549")
    return int(digits)


# Engines that lint knows by name and does not read: their flags are in none of its tables


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherEngine:
    """`programs` start it with any words or with one of `verbs`; `modules` after python -m and in imports."""

    engine: str
    title: str
    programs: tuple[str, ...]
    image: re.Pattern[str]
    modules: tuple[str, ...] = ()

    def finding(self, seen: str) -> LintFinding:
        said = f"this starts {self.title}, whose settings lint does not know: nothing of it was judged"
        return LintFinding(flag=seen, status=Status.UNREAD, message=said)


OTHER_ENGINES = (
    OtherEngine(
        engine="sglang",
        title="SGLang",
        programs=("sglang",),
        image=re.compile(r"(^|/)sglang[\w.-]*(:|@|$)"),
        modules=("sglang",),
    ),
    OtherEngine(
        engine="tensorrt-llm",
        title="TensorRT-LLM",
        programs=("trtllm-serve", "trtllm-build", "trtllm-bench", "trtllm-llmapi-launch"),
        image=re.compile(r"(^|/)(tensorrt-llm|tensorrt_llm)(/release)?[\w.-]*(:|@|$)"),
        modules=("tensorrt_llm",),
    ),
    OtherEngine(
        engine="ollama", title="Ollama", programs=("ollama",), image=re.compile(r"(^|/)ollama(:|@|$)")
    ),
)


def engine_of_program(word: str) -> OtherEngine | None:
    return next((other for other in OTHER_ENGINES if word in other.programs), None)


def engine_of_module(module: str) -> OtherEngine | None:
    package = module.partition(".")[0]
    return next((other for other in OTHER_ENGINES if package in other.modules), None)


def engine_of_image(image: str) -> OtherEngine | None:
    return next((other for other in OTHER_ENGINES if other.image.search(image)), None)


def engine_imported(text: str) -> tuple[OtherEngine, str] | None:
    """The engine that Python code imports, with the line that does it."""
    for match in re.finditer(r"^[ \t]*(?:from|import)[ \t]+([\w.]+)[^\n]*", text, re.MULTILINE):
        other = engine_of_module(match[1])
        if other is not None:
            return other, match[0].strip()
    return None


def is_python_module(before: Sequence[str], word: str, after: Sequence[str]) -> bool:
    """True if this word is the -m of `python -m package.module`."""
    return word == "-m" and bool(after) and bool(before) and "python" in before[-1]
