"""A serving command, read as its engine's parser would read it, and all of a script's. Pure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from speclift.core.errors import UsageError
from speclift.linter.dialect import (
    Dialect,
    Dialects,
    OtherEngine,
    Started,
    base_name,
    engine_of_image,
    engine_of_module,
    engine_of_program,
    is_after_flag,
    is_python_module,
)
from speclift.linter.pasted import UNSET, Form, Pasted, Setting, unset_names
from speclift.linter.rows import Release, Row, ValueKind
from speclift.linter.shell import NOTHING, WORDS_MAX, Expansions, ShellCommand, ShellText, read_shell

# docker run and its kin


CONTAINERS = frozenset({"docker", "podman", "nerdctl"})
_STARTING = frozenset({"run", "create"})
# Options that take no value; every other one takes the next word unless it has an equals sign.
_SWITCHES = re.compile(
    r"-[ditPq]+|--(?:rm|detach|interactive|tty|privileged|init|publish-all|read-only|no-healthcheck|quiet"
    r"|oom-kill-disable|sig-proxy|disable-content-trust|replace)"
)
ENTRY_POINT = "--entrypoint"


def image_place(words: Sequence[str]) -> int | None:
    """The place of the image in `docker run …`; None where this is none, or has no image."""
    at = 1 if words and words[0] in ("sudo", "nohup", "exec") else 0
    if len(words) < at + 3 or words[at] not in CONTAINERS or words[at + 1] not in _STARTING:
        return None
    at += 2
    while at < len(words) and words[at].startswith("-"):
        takes_next = "=" not in words[at] and not _SWITCHES.fullmatch(words[at])
        at += 2 if takes_next else 1
    return at if at < len(words) else None


def without_entry_point(wrapper: Sequence[str]) -> tuple[list[str], list[str]]:
    """docker run … IMAGE without --entrypoint, and what that said."""
    kept: list[str] = []
    entry_point: list[str] = []
    is_next = False
    for word in wrapper:
        name, equals, value = word.partition("=")
        if is_next:
            entry_point, is_next = [word], False
        elif name == ENTRY_POINT:
            entry_point, is_next = [value] if equals else [], not equals
        else:
            kept.append(word)
    return kept, entry_point


# Programs that start others


_STARTERS = frozenset(
    ("sudo", "doas", "nohup", "exec", "time", "nice", "ionice", "numactl", "taskset", "timeout", "setsid", "stdbuf",
     "env", "xargs", "srun", "mpirun", "mpiexec", "chrt", "command", "ssh", "nsys", "ncu", "strace", "screen", "tmux",
     "systemd-run", "unbuffer", "perf", "flock", "tini", "dumb-init", "uvx", "torchrun", "sh", "bash", "zsh", "dash",
     "su")
)  # fmt: skip
# Those that do it only after one of these words: `uv run` and not `uv pip install`.
_RUNNERS = CONTAINERS | frozenset(
    ("uv", "poetry", "pipenv", "pixi", "conda", "mamba", "micromamba", "pipx", "pdm", "hatch", "apptainer",
     "singularity", "kubectl", "oc")
)  # fmt: skip
_RUNNING = frozenset({"run", "exec", "create"})
# Behind a starter these do something else with the name of an engine.
_OTHER_USES = frozenset(
    ("install", "uninstall", "add", "pip", "pip3", "apt", "apt-get", "brew", "systemctl", "service", "pkill", "kill",
     "killall", "echo", "printf", "which", "cd", "rm", "ls", "grep", "git", "clone", "pull", "stop", "start",
     "restart", "logs", "man", "cat", "build", "push", "tag")
)  # fmt: skip


def may_start(program: str) -> bool:
    return base_name(program) in _STARTERS | _RUNNERS


def passes_on(before: Sequence[str]) -> bool:
    """True if words before a program are ones that start it."""
    if not before:
        return True
    starter = base_name(before[0])
    is_runner = starter in _RUNNERS and not _RUNNING.isdisjoint(before)
    return (is_runner or starter in _STARTERS) and _OTHER_USES.isdisjoint(before)


# One command


_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
# What an editor or a browser makes of one or two hyphens.
_DASHES = re.compile("[‐‑‒–—―−]+-?(?=[A-Za-z])")
_NUMBER = re.compile(r"-\.?\d")
# A long command has some dozen; wrappers before a program have some dozen words.
EXPANSIONS_MAX = 200
PROGRAM_AMONG = 400
SHOWN_MAX = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """An engine that is known by name alone, with the words that start it."""

    engine: OtherEngine
    seen: str


def read_command(
    words: Sequence[str],
    dialects: Dialects,
    *,
    release: Release | None = None,
    expansions: Expansions = NOTHING,
) -> Pasted | Foreign | None:
    """The words of one simple command; None where it starts no engine that is known here."""
    environment, rest = assignments(words)
    notes = _emptied_note(words[: len(words) - len(rest)])
    return read_program(rest, environment, dialects, release=release, expansions=expansions, notes=notes)


def read_program(
    words: Sequence[str],
    environment: Sequence[tuple[str, str]],
    dialects: Dialects,
    *,
    release: Release | None = None,
    expansions: Expansions = NOTHING,
    notes: tuple[str, ...] = (),
) -> Pasted | Foreign | None:
    """The same, where the variables before the program have been taken off."""
    words, respelled = _hyphenated(words, dialects)
    found = _program(words, dialects)
    if found is None or isinstance(found, Foreign):
        return found
    _require_a_command(words, expansions)
    dialect, started = found
    wrapper, by_place = started.wrapper, int(dialect.takes_model_by_place)
    settings, places = _flags(started.arguments, dialect, release, expansions)
    return Pasted(
        engine=dialect.engine,
        form=Form.COMMAND,
        settings=tuple(settings),
        model=places[0] if places and by_place else None,
        program=tuple(started.program),
        wrapper=tuple(wrapper),
        environment=(*environment, *_container_environment(wrapper)),
        stray=tuple(places[by_place:]),
        unread=(("xargs", "it adds words that are not shown here; flags among them are not checked"),)
        if "xargs" in wrapper
        else (),
        notes=(
            *notes,
            *respelled,
            *(
                f"{shortened(word)} is filled in by the shell: copied unchanged, not checked"
                for word in expansions.whole
            ),
            *(["Python and YAML have no shell: put the value in there"] if expansions.whole else ()),
        ),
        expansions=expansions,
    )


def _hyphenated(words: Sequence[str], dialects: Dialects) -> tuple[list[str], tuple[str, ...]]:
    """Flags with the hyphens that a dash was made of: two, or one where only that is a flag of some engine."""
    plain: list[str] = []
    notes: list[str] = []
    for word in words:
        match = _DASHES.match(word)
        if match is None:
            plain.append(word)
            continue
        name = word[match.end() :]
        flag = name.partition("=")[0]
        is_short = any(
            f"-{flag}" in dialect.flags and dialect.plain_name(f"--{flag}") not in dialect.flags
            for dialect in dialects.known
        )
        plain.append(f"-{name}" if is_short else f"--{name}")
        notes.append(f"{shortened(word)} was read as {shortened(plain[-1])}")
    return plain, tuple(notes)


def _require_a_command(words: Sequence[str], expansions: Expansions) -> None:
    """Nobody types so much: it is something else, or meant to keep us busy."""
    if len(words) > WORDS_MAX:
        raise UsageError(f"this command has {len(words):,} words; at most {WORDS_MAX:,} are read")
    if len(expansions.pieces) > EXPANSIONS_MAX:
        raise UsageError(
            f"this command has {len(expansions.pieces):,} shell expansions; at most "
            f"{EXPANSIONS_MAX:,} are read"
        )


def shortened(word: str) -> str:
    return repr(word if len(word) <= SHOWN_MAX else f"{word[:SHOWN_MAX]}…")


# Options of env before the variables; of two words where a value follows.
_ENV_OPTIONS = frozenset({"-", "-i", "--ignore-environment", "-v", "--debug"})
_ENV_WITH_VALUE = frozenset({"-u", "--unset", "-C", "--chdir"})


def assignments(words: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """The variables that are set before a program, and the rest; nothing is left where it is `export A=b` alone."""
    environment: list[tuple[str, str]] = []
    is_env, index = False, 0
    while index < len(words):
        word = words[index]
        is_option = is_env and (word in _ENV_OPTIONS or word.partition("=")[0] in _ENV_WITH_VALUE)
        if is_option:
            index += word in _ENV_WITH_VALUE
        elif word in ("env", "export"):
            is_env = word == "env"
        elif _ASSIGNMENT.fullmatch(word):
            name, _, value = word.partition("=")
            environment.append((name, value))
        else:
            return environment, list(words[index:])
        index += 1
    return environment, []


def _emptied_note(before: Sequence[str]) -> tuple[str, ...]:
    if {"-", "-i", "--ignore-environment"}.isdisjoint(before):
        return ()
    return ("env -i is left out: the variables of the shell reach the server as well",)


def _program(words: Sequence[str], dialects: Dialects) -> tuple[Dialect, Started] | Foreign | None:
    image_at = image_place(words)
    first = 0 if image_at is None else image_at + 1
    for index in range(first, min(len(words), PROGRAM_AMONG)):
        found = _started_at(index, words, dialects, is_first=index == first)
        if found is not None:
            return found
    if image_at is not None:
        return _by_image(words, image_at, dialects)
    if words and words[0].startswith("-"):
        guessed = dialects.asked or _dialect_of_flags(words, dialects)
        if guessed is not None:
            return guessed, Started(wrapper=(), program=(), arguments=words)
    return None


def _started_at(
    index: int, words: Sequence[str], dialects: Dialects, *, is_first: bool
) -> tuple[Dialect, Started] | Foreign | None:
    before, word, after = words[:index], words[index], words[index + 1 :]
    is_module = is_python_module(before, word, after)
    if not is_first and not passes_on(before[:-1] if is_module else before):
        return None
    for dialect in dialects.known:
        started = dialect.find_program(word, before, after, is_asked=dialect is dialects.asked)
        if started is not None:
            return dialect, started
    if is_module:
        other, seen = engine_of_module(after[0]), words[index - 1 : index + 2]
    else:
        other = None if is_after_flag(before) else engine_of_program(base_name(word))
        seen = words[index : index + 3]
    return None if other is None else Foreign(engine=other, seen=" ".join(seen))


def _by_image(
    words: Sequence[str], image_at: int, dialects: Dialects
) -> tuple[Dialect, Started] | Foreign | None:
    """A container whose entry point is the server."""
    image, arguments = words[image_at], words[image_at + 1 :]
    for dialect in dialects.known:
        if dialect.image is not None and dialect.image.search(image):
            wrapper, entry_point = without_entry_point(words[: image_at + 1])
            if not entry_point:
                return dialect, Started(wrapper=wrapper, program=(), arguments=arguments)
            found = _program([*entry_point, *arguments], dialects)
            if isinstance(found, tuple) and found[0] is dialect:
                return dialect, Started(wrapper=wrapper, program=(), arguments=found[1].arguments)
            return None
    other = engine_of_image(image)
    return None if other is None else Foreign(engine=other, seen=image)


def _dialect_of_flags(words: Sequence[str], dialects: Dialects) -> Dialect | None:
    """Flags without a program: whichever table knows most of them."""
    flags = [word.partition("=")[0] for word in words if word.startswith("-")]
    counts = [sum(dialect.plain_name(flag) in dialect.flags for flag in flags) for dialect in dialects.known]
    best = [dialect for dialect, count in zip(dialects.known, counts, strict=True) if count == max(counts)]
    return best[0] if len(best) == 1 else None


def _container_environment(wrapper: Sequence[str]) -> list[tuple[str, str]]:
    found = []
    for flag, value in pairwise(wrapper):
        if flag in ("-e", "--env") and "=" in value:
            name, _, content = value.partition("=")
            found.append((name, content))
    return found


# Flags


def _flags(
    words: Sequence[str], dialect: Dialect, release: Release | None, expansions: Expansions
) -> tuple[list[Setting], list[str]]:
    """Settings, and words that belong to no flag."""
    settings: list[Setting] = []
    places: list[str] = []
    queue = deque(words)
    while queue:
        word = queue.popleft()
        if word == "--":
            places += queue
            break
        spelled, equals, value = word.partition("=")
        if not _is_flag(word) or expansions.holds(spelled):
            places.append(word)
            continue
        if dialect.glued is not None and (match := dialect.glued.fullmatch(word)):
            name, _, _ = dialect.find_row(match[1], release)
            settings.append(Setting(name=name, spelled=word, value=match[2]))
            continue
        name, row, is_off = dialect.find_row(spelled, release)
        given: object = value if equals else None
        if not equals:
            given = _following(queue, row, is_dotted="." in name)
        values = given if isinstance(given, list) else [given]
        is_opaque = any(isinstance(each, str) and expansions.holds(each) for each in values)
        settings.append(
            Setting(
                name=name,
                spelled=spelled,
                value=given,
                is_off=is_off,
                is_opaque=is_opaque,
                is_one_word=bool(equals),
            )
        )
    return settings, places


def _is_flag(word: str) -> bool:
    return word.startswith("-") and word != "-" and not _NUMBER.match(word)


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


# Every command of a script


_DEEPEST = 3  # a shell in a shell in a shell
# What declares variables for the commands behind it.
_DECLARING = ("export", "declare", "local", "readonly", "typeset", "set")


@dataclass(slots=True)
class _Before:
    """Variables that commands so far have set, and what of their values only a shell knows."""

    environment: list[tuple[str, str]] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)


def read_script(
    shell: ShellText, dialects: Dialects, release: Release | None, *, depth: int = 0
) -> list[Pasted | Foreign]:
    before = _Before()
    servers: list[Pasted | Foreign] = []
    for command in shell.commands:
        words = list(command.words)
        if words[0] in _DECLARING:
            words = [word for word in words if not word.startswith("-")]
            words[0] = "export"
        environment, rest = assignments(words)
        if not rest or words[0] == "export":
            before.environment += environment
            before.pieces += command.expansions.pieces if environment else ()
            continue
        notes = _emptied_note(words[: len(words) - len(rest)])
        server = read_program(
            rest, environment, dialects, release=release, expansions=command.expansions, notes=notes
        )
        if isinstance(server, Pasted):
            servers.append(_placed(server, command, before))
        elif server is not None:
            servers.append(server)
        else:
            servers += _inside(rest, dialects, release, before, depth=depth)
    if servers:
        return servers
    # A script that is only written down: cat > run.sh <<EOF
    for document in shell.documents:
        servers += read_script(read_shell(document), dialects, release, depth=depth + 1)
    return servers


def _placed(server: Pasted, command: ShellCommand, before: _Before) -> Pasted:
    """The server with the variables that are set by now, and those that are not."""
    unset = unset_names(command.expansions.pieces, before.environment)
    known = [
        (name, value)
        for index, (name, value) in enumerate(before.environment)
        if not unset_names([value], before.environment[:index])
    ]
    left_out = {name: value for name, value in before.environment if (name, value) not in known}
    live = tuple(dict.fromkeys([*server.expansions.pieces, *before.pieces]))
    return replace(
        server,
        environment=(*known, *server.environment),
        exported=frozenset(name for name, _ in known),
        expansions=replace(server.expansions, pieces=live),
        missing=(*server.missing, *((name, UNSET) for name in unset)),
        notes=(
            *server.notes,
            *(
                f"{name}={shortened(value)} is left out: nothing in this text tells its value"
                for name, value in left_out.items()
            ),
            *(["what is redirected is left out of the translation"] if command.is_redirected else ()),
        ),
    )


def _inside(
    words: Sequence[str], dialects: Dialects, release: Release | None, before: _Before, *, depth: int
) -> list[Pasted | Foreign]:
    """Servers in a text that another program is given to run: bash -c, ssh, tmux."""
    if depth >= _DEEPEST or not may_start(words[0]):
        return []
    for index, word in enumerate(words):
        if not any(character.isspace() for character in word.strip()):
            continue
        try:
            inner = read_shell(word)
        except UsageError:
            continue
        servers = read_script(inner, dialects, release, depth=depth + 1)
        around = " ".join([*words[:index], "…", *words[index + 1 :]])
        note = f"{shortened(around)} starts it, and is left out"
        if servers:
            return [
                _told_from_outside(server, before, note) if isinstance(server, Pasted) else server
                for server in servers
            ]
    return []


def _told_from_outside(server: Pasted, before: _Before, note: str) -> Pasted:
    unset = {f"${name}" for name, value in before.environment if not unset_names([value], before.environment)}
    return replace(
        server,
        environment=(*before.environment, *server.environment),
        exported=server.exported | {name for name, _ in before.environment},
        expansions=replace(
            server.expansions, pieces=tuple(dict.fromkeys([*server.expansions.pieces, *before.pieces]))
        ),
        missing=tuple((name, why) for name, why in server.missing if name not in unset),
        notes=(*server.notes, note),
    )
