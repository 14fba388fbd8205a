"""Every server that a shell script starts, in its order, with what the commands around it say about it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from speclift.core.errors import UsageError
from speclift.linter.command import Foreign, assignments, read_program, shortened
from speclift.linter.dialect import Dialects
from speclift.linter.findings import Release
from speclift.linter.pasted import Pasted
from speclift.linter.placeholders import UNSET, unset_names
from speclift.linter.shell import ShellCommand, ShellText, read_shell
from speclift.linter.starters import may_start

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
        server = read_program(rest, environment, dialects, release=release, expansions=command.expansions)
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
    """With the variables that are set by now, and those that are not."""
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
