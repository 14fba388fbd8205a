"""A serving command, read as its engine's parser would read it: environment, wrapper, program, flags. Pure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath

from speclift.core.errors import UsageError
from speclift.linter import llamacpp_flags, vllm_flags
from speclift.linter.findings import Release
from speclift.linter.pasted import Engine, Form, Pasted, Setting
from speclift.linter.rows import NameTable, Row, ValueKind
from speclift.linter.shell import NOTHING, WORDS_MAX, Expansions

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_VLLM_MODULE = re.compile(r"vllm(\.entrypoints\..*)?")
_VLLM_IMAGE = re.compile(r"(^|/)(vllm-openai|vllm)[\w.-]*(:|@|$)")
_LLAMA_IMAGE = re.compile(r"(^|/)llama\.cpp(:|@|$)")
LLAMA_PROGRAMS = (
    "llama-server", "llama-cli", "llama-run", "llama-speculative", "llama-speculative-simple", "llama-lookup", "llama",
)  # fmt: skip
# Names of the programs before llama.cpp prefixed them; too common to prove anything without a GGUF in sight.
LLAMA_PROGRAMS_OLD = ("server", "main", "speculative")
VLLM_MODULE = "vllm.entrypoints.openai.api_server"
CONTAINERS = ("docker", "podman", "nerdctl")
_NUMBER = re.compile(r"-\.?\d")
# A long command has some dozen; wrappers before a program have some dozen words.
EXPANSIONS_MAX = 200
PROGRAM_AMONG = 400
SHOWN_MAX = 80


def read_command(
    words: Sequence[str],
    *,
    engine: Engine | None,
    release: Release | None = None,
    expansions: Expansions = NOTHING,
) -> Pasted | None:
    """The words of one simple command; None where it starts no engine that is known here."""
    environment, rest = assignments(words)
    return read_program(rest, environment, engine=engine, release=release, expansions=expansions)


def read_program(
    words: Sequence[str],
    environment: Sequence[tuple[str, str]],
    *,
    engine: Engine | None,
    release: Release | None = None,
    expansions: Expansions = NOTHING,
) -> Pasted | None:
    """The same, where the variables before the program have been taken off."""
    found = _program(words, engine)
    if found is None:
        return None
    _require_a_command(words, expansions)
    seen, wrapper = found.engine, found.wrapper
    settings, places = _flags(found.arguments, seen, release, expansions)
    return Pasted(
        engine=seen,
        form=Form.COMMAND,
        settings=tuple(settings),
        model=places[0] if places and seen == "vllm" else None,
        program=tuple(found.program),
        wrapper=tuple(wrapper),
        environment=(*environment, *_container_environment(wrapper)),
        stray=tuple(places[seen == "vllm" :]),
        unread=(("xargs", "it adds words that are not here, and flags among them are not judged"),)
        if "xargs" in wrapper
        else (),
        notes=(
            *(
                f"{shortened(word)} is filled in by the shell: carried over as it stands, not judged"
                for word in expansions.whole
            ),
            *(["Python and YAML know no shell: put the value in there"] if expansions.whole else ()),
        ),
        expansions=expansions,
    )


def _require_a_command(words: Sequence[str], expansions: Expansions) -> None:
    """Nobody types so much: it is something else, or meant to keep us busy."""
    if len(words) > WORDS_MAX:
        raise UsageError(f"this command has {len(words):,} words; at most {WORDS_MAX:,} are read")
    if len(expansions.pieces) > EXPANSIONS_MAX:
        raise UsageError(
            f"a shell would have to fill in {len(expansions.pieces):,} places of this command; at most "
            f"{EXPANSIONS_MAX:,} are carried over"
        )


def shortened(word: str) -> str:
    return repr(word if len(word) <= SHOWN_MAX else f"{word[:SHOWN_MAX]}…")


def assignments(words: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """The variables that are set before a program, and the rest; nothing is left where it is `export A=b` alone."""
    environment: list[tuple[str, str]] = []
    for index, word in enumerate(words):
        if not _ASSIGNMENT.fullmatch(word) and word not in ("env", "export"):
            return environment, list(words[index:])
        name, equals, value = word.partition("=")
        if equals:
            environment.append((name, value))
    return environment, []


@dataclass(frozen=True, slots=True, kw_only=True)
class _Started:
    """A program with what stands before it and its arguments."""

    engine: Engine
    wrapper: Sequence[str]
    program: Sequence[str]
    arguments: Sequence[str]


def _program(words: Sequence[str], engine: Engine | None) -> _Started | None:
    for index, word in enumerate(words[:PROGRAM_AMONG]):
        before, after = words[:index], words[index + 1 :]
        found = (
            _vllm_program(word, before, after)
            or _llama_program(word, before, after, engine)
            or _image(word, before, after)
        )
        if found is not None:
            return found
    if words and words[0].startswith("-"):
        guessed = engine or _engine_of_flags(words)
        return _Started(engine=guessed, wrapper=(), program=(), arguments=words) if guessed else None
    return None


def _base_name(word: str) -> str:
    return PurePosixPath(word.replace("\\", "/")).name.removesuffix(".exe")


def _vllm_program(word: str, before: Sequence[str], after: Sequence[str]) -> _Started | None:
    if _base_name(word) == "vllm" and not before_flag(before):
        if after[:1] == ["serve"]:
            return _Started(engine="vllm", wrapper=before, program=("vllm", "serve"), arguments=after[1:])
        if not after or after[0].startswith("-"):
            return _Started(engine="vllm", wrapper=before, program=("vllm",), arguments=after)
    if word == "-m" and after and _VLLM_MODULE.fullmatch(after[0]) and before and "python" in before[-1]:
        program = (before[-1], "-m", after[0])
        return _Started(engine="vllm", wrapper=before[:-1], program=program, arguments=after[1:])
    return None


def _llama_program(
    word: str, before: Sequence[str], after: Sequence[str], engine: Engine | None
) -> _Started | None:
    name = _base_name(word)
    if name in LLAMA_PROGRAMS and not before_flag(before):
        has_verb = name == "llama" and after[:1] in (["serve"], ["cli"])
        program = (word, after[0]) if has_verb else (word,)
        return _Started(
            engine="llamacpp", wrapper=before, program=program, arguments=after[len(program) - 1 :]
        )
    if name in LLAMA_PROGRAMS_OLD and not before and (engine == "llamacpp" or _mentions_gguf(after)):
        return _Started(engine="llamacpp", wrapper=before, program=(word,), arguments=after)
    return None


def _image(word: str, before: Sequence[str], after: Sequence[str]) -> _Started | None:
    """A container whose entry point is the server."""
    if word.startswith("-") or "run" not in before or not any(each in CONTAINERS for each in before[:2]):
        return None
    if _VLLM_IMAGE.search(word):
        return _Started(engine="vllm", wrapper=[*before, word], program=(), arguments=after)
    if _LLAMA_IMAGE.search(word):
        return _Started(engine="llamacpp", wrapper=[*before, word], program=(), arguments=after)
    return None


def before_flag(before: Sequence[str]) -> bool:
    """Whether the word is the value of a flag, as in `--name vllm`."""
    return bool(before) and before[-1].startswith("-") and before[-1] not in ("--",)


def _mentions_gguf(words: Sequence[str]) -> bool:
    return any(word.endswith(".gguf") for word in words) or any(
        word in ("-md", "-hf", "-ngl") for word in words
    )


def _engine_of_flags(words: Sequence[str]) -> Engine | None:
    """Flags without a program: whichever table knows more of them."""
    flags = [word.partition("=")[0] for word in words if word.startswith("-")]
    for_vllm = sum(_vllm_name(flag).partition(".")[0] in vllm_flags.FLAGS for flag in flags)
    for_llama = sum(flag in llamacpp_flags.FLAGS for flag in flags)
    if for_vllm == for_llama:
        return None
    return "vllm" if for_vllm > for_llama else "llamacpp"


def _container_environment(wrapper: Sequence[str]) -> list[tuple[str, str]]:
    found = []
    for flag, value in pairwise(wrapper):
        if flag in ("-e", "--env") and "=" in value:
            name, _, content = value.partition("=")
            found.append((name, content))
    return found


# Flags


def _flags(
    words: Sequence[str], engine: Engine, release: Release | None, expansions: Expansions
) -> tuple[list[Setting], list[str]]:
    """Settings, and words that belong to no flag."""
    table = vllm_flags.FLAGS if engine == "vllm" else llamacpp_flags.FLAGS
    settings: list[Setting] = []
    places: list[str] = []
    queue = deque(words)
    while queue:
        word = queue.popleft()
        if word == "--":
            places += queue
            break
        spelled, equals, value = word.partition("=")
        if not word.strip():
            continue  # a blank after a backslash, a slip of the paste
        if not _is_flag(word) or expansions.holds(spelled):
            places.append(word)
            continue
        if engine == "vllm" and re.fullmatch(r"-O\d", word):
            settings.append(Setting(name="--compilation-config", spelled=word, value=word[2:]))
            continue
        name, row, is_off = find_row(spelled, engine, table, release)
        given: object = value if equals else None
        if not equals:
            given = _following(queue, row, is_dotted="." in name)
        values = given if isinstance(given, list) else [given]
        is_opaque = any(isinstance(each, str) and expansions.holds(each) for each in values)
        settings.append(Setting(name=name, spelled=spelled, value=given, is_off=is_off, is_opaque=is_opaque))
    return settings, places


def _is_flag(word: str) -> bool:
    return word.startswith("-") and word != "-" and not _NUMBER.match(word)


def find_row(
    spelled: str, engine: Engine, table: NameTable, release: Release | None
) -> tuple[str, Row | None, bool]:
    """The table's name of a flag (with the key after a dot, if any), its row, and whether it is a --no- form."""
    if engine == "llamacpp":
        return spelled, table.find(spelled), False
    name = _vllm_name(spelled)
    head, dot, key = name.partition(".")
    row = table.find("--compilation-config" if head == "-O" else head)
    if row is not None:
        return row.name + dot + key, row, False
    row = table.find(f"--{head.removeprefix('--no-')}") if head.startswith("--no-") else None
    if row is not None:
        return row.name, row, True
    row = _completed(head, table, release)
    return (name if row is None else row.name + dot + key), row, False


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


def _vllm_name(spelled: str) -> str:
    """vLLM takes dashes and underscores alike up to the first dot."""
    if not spelled.startswith("--"):
        return spelled
    head, dot, key = spelled.partition(".")
    return head.replace("_", "-") + dot + key


def _following(queue: deque[str], row: Row | None, *, is_dotted: bool) -> object:
    """Takes the flag's value off the queue."""
    if not queue or _is_flag(queue[0]):
        return None
    if row is None:
        return queue.popleft()
    if row.kind is ValueKind.SWITCH and not is_dotted:
        # Old commands write --enable-chunked-prefill False; anything else is the next argument.
        return queue.popleft() if queue[0].lower() in ("true", "false") else None
    if row.value_since is not None:
        return queue.popleft() if queue[0] in {choice.name for choice in row.choices} else None
    values = [queue.popleft()]
    while row.kind is ValueKind.LIST and queue and not _is_flag(queue[0]):
        values.append(queue.popleft())
    return values if len(values) > 1 else values[0]
