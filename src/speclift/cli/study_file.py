"""speclift.toml: what the flags of a measuring verb say, said in a file. Flags win over it.

Keys are flag names with _ for -; a flag that is repeated or takes commas is a TOML list.
"""

from __future__ import annotations

import inspect
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, time
from pathlib import Path

import typer

from speclift.core.errors import UsageError, unknown_name
from speclift.core.flags import Reading
from speclift.core.quantities import printable
from speclift.studies.private import read_named

STUDY_FILE = Path("speclift.toml")
FILE_BYTES_MAX = 4 << 20
TYPE_NAMES = {str: "text", Path: "text", int: "a whole number", float: "a number", bool: "true or false"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFlag:
    """One flag as the file may say it."""

    parameter: str
    flag: str
    type: type
    is_repeatable: bool = False
    takes_commas: bool = False

    @property
    def expected(self) -> str:
        name = TYPE_NAMES[self.type]
        return f"{name} or a list of them" if self.is_repeatable or self.takes_commas else name


def settings_of(parameters: Iterable[inspect.Parameter]) -> dict[str, FileFlag]:
    """Flags in typer's notation, under each of their names."""
    settings = {}
    for parameter in parameters:
        annotation, *extras = typing.get_args(parameter.annotation)
        option = next(extra for extra in extras if isinstance(extra, typer.models.OptionInfo))
        commas = next((extra for extra in extras if isinstance(extra, Reading) and extra.takes_commas), None)
        inner, is_repeatable = _unwrapped(annotation)
        # typer keeps the first name of an annotated flag where a default would stand.
        names = (option.default, *(option.param_decls or ()))
        flags = [name for name in names if isinstance(name, str)] or [f"--{parameter.name.replace('_', '-')}"]
        for flag in flags:
            settings[flag.removeprefix("--").replace("-", "_")] = FileFlag(
                parameter=parameter.name,
                flag=flag,
                type=commas.entry if commas else inner,
                is_repeatable=is_repeatable,
                takes_commas=commas is not None,
            )
    return settings


def _unwrapped(annotation: object) -> tuple[type, bool]:
    """The type behind `X | None` and `list[X]`, and whether it was a list."""
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        annotation = next(part for part in typing.get_args(annotation) if part is not types.NoneType)
    is_list = typing.get_origin(annotation) is list
    inner = typing.get_args(annotation)[0] if is_list else annotation
    assert isinstance(inner, type), annotation
    return inner, is_list


def read_study_file(path: Path, settings: Mapping[str, FileFlag]) -> dict[str, object]:
    """Defaults by parameter name, in the form the command line would give them."""
    return defaults_of(read_toml(path), settings, path)


def defaults_of(
    table: Mapping[str, object], settings: Mapping[str, FileFlag], path: Path, *, more: Iterable[str] = ()
) -> dict[str, object]:
    """`more` are keys that the file may have and that somebody else has read."""
    defaults: dict[str, object] = {}
    for key, value in table.items():
        if key in more:
            continue
        setting = settings.get(key)
        if setting is None:
            raise unknown_name(what=f"key in {path}:", seen=key, allowed=[*settings, *more])
        if setting.parameter in defaults:
            raise UsageError(f"{path}: '{key}' repeats {setting.parameter!r}")
        defaults[setting.parameter] = _checked(value, setting, where=f"{path}: '{key}'")
    return defaults


def read_toml(path: Path) -> dict[str, object]:
    data = read_named(path, what="study file", limit_bytes=FILE_BYTES_MAX)
    try:
        return tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 at byte {error.start}") from error
    except (ValueError, RecursionError) as error:  # also of a number of thousands of digits
        raise UsageError(
            f"{path} is not TOML: {printable(str(error))}", hint="write key = value, such as k = [3, 5]"
        ) from error


def _checked(value: object, setting: FileFlag, *, where: str) -> object:
    takes_list = setting.is_repeatable or setting.takes_commas
    entries = value if isinstance(value, list) and takes_list else [value]
    for entry in entries:
        # What the flag takes as one text with commas may stand as one text here too.
        is_flag_text = setting.takes_commas and isinstance(entry, str) and entry is value
        if not is_flag_text and not _is_of(entry, setting.type):
            raise UsageError(f"{where} takes {setting.expected}, saw {_shown(entry)}")
    if setting.takes_commas:
        return ",".join(str(entry) for entry in entries)
    return list(entries) if setting.is_repeatable else value


def _is_of(value: object, expected: type) -> bool:
    if isinstance(value, bool):
        return expected is bool
    if expected is float:
        return isinstance(value, (int, float))
    return isinstance(value, str if expected is Path else expected)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, (date, time)):
        return value.isoformat()
    return printable(repr(value), limit=60)


def as_flags(defaults: Mapping[str, object], settings: Mapping[str, FileFlag]) -> tuple[str, ...]:
    """The same settings as a command line would say them."""
    flags: dict[str, str] = {}
    for setting in settings.values():
        flags.setdefault(setting.parameter, setting.flag)
    words: list[str] = []
    for parameter, value in defaults.items():
        if isinstance(value, bool):
            words += [flags[parameter]] if value else []
            continue
        for entry in value if isinstance(value, list) else [value]:
            flag, text = flags[parameter], str(entry)
            # A value that looks like a flag is one of its own unless it is tied to its flag.
            words += [f"{flag}={text}"] if text.startswith("-") else [flag, text]
    return tuple(words)
