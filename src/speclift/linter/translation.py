"""What a pasted command is today, in every form its engine takes, and what got lost on the way. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from speclift.linter.pasted import Pasted
from speclift.linter.shell import quote

# Keys that need no quotes, as long as they are no word that YAML takes for something else.
_PLAIN_KEY = re.compile(
    r"(?!(?:y|n|yes|no|on|off|true|false|null)$)[A-Za-z][\w.-]*", re.ASCII | re.IGNORECASE
)
_PAIR = re.compile(r"\\\\|\\u(d[89ab]..)\\u(d[c-f]..)|\x7f")


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """`source` are the words of the command as a shell reads them. `notes` say which part has no equivalent and what
    comes closest. `yaml` is a file for vllm serve --config, or a container service where the engine reads no such
    file."""

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
