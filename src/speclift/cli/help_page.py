"""How --help looks: plain text, flags in groups, an example to paste at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from speclift.core.errors import UsageError

PAGE = {"max_content_width": 100}
OTHER_FLAGS = "Options"
# Flags that may come without a value, and the one they then have.
LEFT_OUT = {"--markdown": "-"}
# What an empty text would make the current folder of.
PATHS = {"DIR", "FILE", "PATH", "FILE|DIR", "STUDY|FILE"}
TAKES_ANY_WORD = "--engine-arg"


class Verb(TyperCommand):
    """A command whose flags stand in groups, named by rich_help_panel, also where rich draws nothing; and in which a
    flag's value may be left out."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, with_left_out_values(args))
        own = args[: args.index("--")] if "--" in args else args
        for option in self.get_params(ctx):
            if getattr(option, "metavar", None) in PATHS and _is_left_empty(option.opts, own):
                raise UsageError(f"{option.opts[0]} is empty", hint="is the variable set that it comes from?")
        return rest

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            shown = parameter.get_help_record(ctx)
            if shown is not None:
                default = "Arguments" if parameter.param_type_name == "argument" else OTHER_FLAGS
                group = getattr(parameter, "rich_help_panel", None) or default
                groups.setdefault(group, []).append(shown)
        groups[OTHER_FLAGS] = groups.pop(OTHER_FLAGS)  # last; never empty, --help is there
        for title, flags in groups.items():
            with formatter.section(title):
                formatter.write_dl(flags)


def _is_left_empty(names: Sequence[str], words: Sequence[str]) -> bool:
    return any(
        word == f"{name}=" or (word == name and words[place + 1 : place + 2] == [""])
        for place, word in enumerate(words)
        for name in names
    )


def with_left_out_values(words: Sequence[str]) -> list[str]:
    """What comes behind `--` is somebody else's, and so is what comes behind a flag that takes any word."""
    filled: list[str] = []
    for place, word in enumerate(words):
        if word == "--":
            return [*filled, *words[place:]]
        filled.append(word)
        following = words[place + 1] if place + 1 < len(words) else "--"
        is_value = place > 0 and words[place - 1] == TAKES_ANY_WORD
        if word in LEFT_OUT and not is_value and following.startswith("-") and following != "-":
            filled.append(LEFT_OUT[word])
    return filled


def example(*commands: str) -> str:
    """The end of a --help page; \\b keeps a command on one line however narrow the page."""
    title = "Example:" if len(commands) == 1 else "Examples:"
    return "\n".join(("\b", title, *(f"  {command}" for command in commands)))


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbPlace:
    """`modules`: the one with the verb, then those whose flags it shares; `short` is its line in `--help`."""

    modules: tuple[str, ...]
    shown: str
    short: str

    def command(self, verb: str) -> TyperCommand | TyperGroup:
        module, *_ = [resolve_name(name) for name in self.modules]
        group: typer.Typer | None = getattr(module, "app", None)
        if group is None:
            group = typer.Typer(rich_markup_mode=None, add_completion=False)
            group.command(verb, cls=Verb, epilog=example(self.shown))(getattr(module, f"{verb}_command"))
        command = get_command(group)
        assert isinstance(command, TyperCommand | TyperGroup)
        command.name = verb
        return command


class _Commands(Mapping[str, TyperCommand | TyperGroup]):
    """Commands by name, each imported when it is looked up."""

    def __init__(self, places: Mapping[str, VerbPlace]) -> None:
        self._places = places
        self._loaded: dict[str, TyperCommand | TyperGroup] = {}

    def __getitem__(self, verb: str) -> TyperCommand | TyperGroup:
        if verb not in self._loaded:
            self._loaded[verb] = self._places[verb].command(verb)
        return self._loaded[verb]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class Verbs(TyperGroup):
    """A group that imports no verb but the one that is called."""

    places: ClassVar[Mapping[str, VerbPlace]]

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands(self.places)  # type: ignore[assignment]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, place.short) for verb, place in self.places.items()])
