"""A systemd unit: the commands of its ExecStart lines, with its environment. Pure."""

from __future__ import annotations

import re

_LINE_END = re.compile(r"\\[ \t]*\r?\n[ \t]*")
_EXEC = re.compile(r"^[ \t]*ExecStart[ \t]*=[ \t]*[-@:+!|]*(.+)$", re.MULTILINE)
_ENVIRONMENT = re.compile(r"^[ \t]*Environment[ \t]*=[ \t]*(.+)$", re.MULTILINE)
_FILE = re.compile(r"^[ \t]*EnvironmentFile[ \t]*=", re.MULTILINE)


def is_unit(text: str) -> bool:
    return _EXEC.search(text) is not None and re.search(r"^\s*\[Service\]", text, re.MULTILINE) is not None


def unit_commands(text: str) -> tuple[str, tuple[str, ...]]:
    """The same as a shell script, and what was left of the unit."""
    joined = _LINE_END.sub(" ", text)
    exports = (f"export {match[1]}" for match in _ENVIRONMENT.finditer(joined))
    starts = (match[1] for match in _EXEC.finditer(joined))
    notes = ["this is the command of the unit's ExecStart; its other lines stay as they are"]
    if _FILE.search(joined):
        notes.append("EnvironmentFile is not read: variables in it are not known here")
    return "\n".join([*exports, *starts]), tuple(notes)
