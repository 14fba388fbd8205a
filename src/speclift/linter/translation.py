"""What a pasted command is today, in every form its engine takes, and what got lost on the way. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from speclift.linter.findings import Release
from speclift.linter.pasted import Pasted, Setting
from speclift.linter.row_rules import shown
from speclift.linter.rows import NameTable, Row
from speclift.linter.shell import quote

# Keys that need no quotes, as long as they are no word that YAML takes for something else.
_PLAIN_KEY = re.compile(
    r"(?!(?:y|n|yes|no|on|off|true|false|null)$)[A-Za-z][\w.-]*", re.ASCII | re.IGNORECASE
)
_PAIR = re.compile(r"\\\\|\\u(d[89ab]..)\\u(d[c-f]..)|\x7f")


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """`source` are the words of the command as a shell reads them. `notes` say which part has no equivalent and what
    comes closest. `yaml` is a file that the engine reads, or a container service where it reads none."""

    argv: tuple[str, ...]
    source: tuple[str, ...]
    python: str
    yaml: str
    # What the YAML is, as a title above it.
    yaml_is: str
    notes: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        return " ".join(self.source)


def shell_source(
    pasted: Pasted, argv: Sequence[str], environment: Iterable[tuple[str, str]]
) -> tuple[str, ...]:
    """Variables, then the words. A variable that the words themselves use must be set by a command before them."""
    used = set(re.findall(r"\$\{?(\w+)", " ".join(pasted.expansions.pieces)))
    leading = []
    for name, value in environment:
        said = f"{name}={quote(value, pasted.expansions)}"
        leading.append(f"export {said};" if name in pasted.exported and name in used else said)
    return (*leading, *(quote(word, pasted.expansions) for word in argv))


def folded_command(words: Sequence[str]) -> str:
    """Words of shell source over several lines, one flag each, still one command for a shell."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("-") and not word[1:2].isdigit() and lines != [[]]:
            lines.append([])
        lines[-1].append(word)
    return " \\\n    ".join(" ".join(line) for line in lines)


def translate_by_rows(
    pasted: Pasted, program: Sequence[str], flags: NameTable, newest: Release
) -> Translation:
    """Each flag as its row says; for an engine in whose command line no two flags depend on each other."""
    notes: list[str] = []
    words: list[str] = []
    for setting in pasted.settings:
        row = flags.find(setting.name)
        if row is None:
            notes.append(f"{setting.spelled} was left out: {flags.engine} has no such flag")
        else:
            words += words_today(setting, row, row.renamed_to or setting.name, flags, newest, notes)
    model = () if pasted.model is None else (pasted.model,)
    argv = [*pasted.wrapper, *program, *model, *words, *pasted.carried]
    return Translation(
        argv=tuple(argv),
        source=shell_source(pasted, argv, shell_environment(pasted)),
        python=python_launch(argv),
        yaml=compose_service(argv, name=pasted.engine),
        yaml_is=AS_SERVICE,
        notes=tuple(dict.fromkeys(notes)),
    )


def words_today(
    setting: Setting, row: Row, name: str, table: NameTable, newest: Release, notes: list[str]
) -> list[str]:
    """A flag under its name of today; what stands in for it where it is gone, and a note where nothing does."""
    if row.renamed_to is not None or row.holds(newest):
        if setting.value is None:
            return [name, "on"] if row.value_since is not None else [name]
        return [name, shown(setting.value)]
    if row.replacement is not None:
        return row.replacement.split()
    notes.append(f"{setting.spelled} was left out: {row.note or f'{table.engine} no longer has it'}")
    return []


def shell_environment(pasted: Pasted) -> list[tuple[str, str]]:
    """Variables of the shell; those inside docker run stay where they are."""
    return [(name, value) for name, value in pasted.environment if f"{name}={value}" not in pasted.wrapper]


AS_SERVICE = "As a container service"


def python_launch(argv: Sequence[str]) -> str:
    """The same server started from Python."""
    listed = "".join(f"    {json.dumps(word)},\n" for word in argv)
    return f"import subprocess\n\nserver = subprocess.Popen([\n{listed}])\n"


def compose_service(argv: Sequence[str], *, name: str) -> str:
    """The same server as a container service; JSON strings are YAML strings too."""
    listed = "".join(f"      - {json.dumps(word)}\n" for word in argv[1:])
    return f"services:\n  {name}:\n    entrypoint: [{json.dumps(argv[0])}]\n    command:\n{listed}"


def yaml_text(value: Mapping[str, object], *, indent: int = 0) -> str:
    """Block style with every text in double quotes, so that no value changes its type on the way back."""
    lines = []
    for key, each in value.items():
        name = key if _PLAIN_KEY.fullmatch(key) else _yaml_scalar(key)
        if isinstance(each, Mapping) and each:
            lines.append(f"{' ' * indent}{name}:\n{yaml_text(each, indent=indent + 2)}")
        else:
            lines.append(f"{' ' * indent}{name}: {_yaml_scalar(each)}\n")
    return "".join(lines)


def _yaml_scalar(value: object) -> str:
    """JSON is YAML, but for two escapes that stand for one character, and for DEL."""
    return _PAIR.sub(_yaml_escape, json.dumps(value))


def _yaml_escape(match: re.Match[str]) -> str:
    if match[1]:
        high, low = int(match[1], 16), int(match[2], 16)
        return f"\\U{0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00):08x}"
    return match[0] if match[0] != "\x7f" else "\\x7f"
