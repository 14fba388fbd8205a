"""What stands for something that is not here: <model>, your-model, an ellipsis, a variable that nothing sets. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from speclift.linter.pasted import Expression, ShellExpression

_PLACEHOLDER = re.compile(
    r"<[A-Za-z][^<>]*>"
    r"|(?:^|(?<=[\s\"'/=:]))(?:\.\.\.|…)(?=$|[\s\"'/,\]}])"
    r"|^\{\{?\s*[A-Za-z.][\w. -]*\}?\}$"
    r"|^\[[A-Z][A-Z_ -]*\]$"
    r"|(?:^|(?<=[\s\"'/=:]))(?:your|YOUR|Your)[-_ ]\w[\w.-]*"
)
_NAME = re.compile(r"\$\{?([A-Za-z_]\w*|[0-9@*#?!-])(:?[-+=])?")
_ARITHMETIC = re.compile(r"\$\(\((.*)\)\)\Z", re.DOTALL)
_PLAIN_NAME = re.compile(r"(?<![\w$])[A-Za-z_]\w*")
# What is set on most machines, or is a secret that belongs in no script.
_AMBIENT = re.compile(
    r"HOME|PWD|USER|UID|HOSTNAME|PATH|TMPDIR|LD_LIBRARY_PATH|HF_HOME|XDG_\w+|\w+_(?:TOKEN|KEY|SECRET|CACHE)|TOKEN"
)
UNSET = "nothing in this text sets it, so no command is written from it"
STANDS_IN = "it stands in for something that is not here: put in what is meant"


def placeholders_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield from (match[0] for match in _PLACEHOLDER.finditer(value))
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from placeholders_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from placeholders_in(inner)


def expressions_in(name: str, value: object) -> Iterator[tuple[str, Expression]]:
    """Python that stands for a value, with the name of the setting or the key that it is given to."""
    if isinstance(value, Expression):
        if not isinstance(value, ShellExpression):
            yield name, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from expressions_in(f"{name}.{key}", inner)
    elif isinstance(value, list):
        for inner in value:
            yield from expressions_in(name, inner)


def unset_names(pieces: Iterable[str], assigned: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Variables of these pieces of shell source that no assignment sets to something that is known, as $NAME."""
    values: dict[str, str] = {}
    unset: dict[str, None] = {}
    for name, value in assigned:
        if not any(_unset_in(value, values)):
            values[name] = value
        else:
            values.pop(name, None)
    for piece in pieces:
        unset.update(dict.fromkeys(_unset_in(piece, values)))
    return tuple(unset)


def _unset_in(source: str, known: Mapping[str, str]) -> Iterator[str]:
    if source.startswith("$'"):
        return
    arithmetic = _ARITHMETIC.match(source)
    if arithmetic is not None:
        bare = (match[0] for match in _PLAIN_NAME.finditer(arithmetic[1]))
        yield from (f"${name}" for name in bare if name not in known and not _AMBIENT.fullmatch(name))
    for match in _NAME.finditer(source):
        has_default = source[match.start() + 1 : match.start() + 2] == "{" and match[2] is not None
        if not has_default and match[1] not in known and not _AMBIENT.fullmatch(match[1]):
            yield f"${match[1]}"
