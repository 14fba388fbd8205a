"""From the flags that a value declares (core/flags.py) to a command that takes it."""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, replace
from pathlib import Path
from typing import Annotated

import typer

from speclift.bench.ask import Ask
from speclift.cli.study_file import STUDY_FILE, FileFlag, as_flags, read_study_file, settings_of
from speclift.core.flags import COMPARED, PANELS, STUDY, DeclaredFlag, declared_flags

# Filled by takes_ask: one study file serves every measuring verb, whichever flags a verb has of its own.
STUDY_SETTINGS: dict[str, FileFlag] = {}


class Flags:
    """The declared flags of a value, as parameters of a command and back."""

    def __init__(self, asked: type, *, are_optional: bool = False) -> None:
        """`are_optional`: none has a default of its own, for a command that changes a value which is there already."""
        self._are_optional = are_optional
        order = {panel: place for place, panel in enumerate(PANELS)}
        self._declared = sorted(
            declared_flags(asked), key=lambda declared: order.get(declared.flag.panel, len(order))
        )

    def parameters(self) -> list[inspect.Parameter]:
        return [self._parameter(declared) for declared in self._declared]

    def given(self, options: dict[str, object]) -> dict[str, object]:
        """Values by field, taken out of what a command was called with; what was not said is not among them."""
        values = {}
        for declared in self._declared:
            option, reading = options.pop(declared.key), declared.flag.reading
            if option is None or (reading is not None and option == "" == reading.default):
                continue
            if reading is not None:
                values[declared.field] = reading.read(str(option), declared.names[0])
            else:
                values[declared.field] = tuple(option) if isinstance(option, list) else option
        return values

    def typed(self, ctx: typer.Context) -> set[str]:
        """The fields whose flags stand on the command line."""
        return {declared.field for declared in self._declared if is_typed(ctx, declared.key)}

    def _parameter(self, declared: DeclaredFlag) -> inspect.Parameter:
        flag, reading = declared.flag, declared.flag.reading
        option = typer.Option(
            *declared.names,
            help=flag.help,
            metavar=flag.metavar,
            rich_help_panel=flag.panel,
            min=flag.low,
        )
        annotation, default = declared.type, declared.default
        if reading is not None:
            annotation, default = str, reading.default
        elif typing.get_origin(annotation) is tuple:
            annotation, default = list[str] | None, None
        if self._are_optional and default != "":
            annotation, default = typing.Optional[annotation], None  # noqa: UP045
        return inspect.Parameter(
            declared.key,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if default is MISSING else default,
            annotation=Annotated[annotation, option, reading],
        )


def takes(
    flags: Flags, *, as_parameter: str, reads_line: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A verb(VALUES, ...) as a command whose flags are these and its own; the values given come as this parameter.
    `reads_line`: they may come from a pasted line too, as plan takes them."""

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        own = own_parameters(verb, without=as_parameter)

        @functools.wraps(verb)
        def command(ctx: typer.Context, **options: object) -> None:
            line = brought_line(ctx, options, is_planned=True) if reads_line else None
            values = flags.given(options)
            if line is not None:
                typed = flags.typed(ctx)
                values |= {name: value for name, value in line.items() if name not in typed}
            verb(**{as_parameter: values}, **options)

        return signed(
            command,
            [
                CONTEXT_PARAMETER,
                *(LINE_PARAMETERS if reads_line else ()),
                *(p for p in own if is_argument(p)),
                *flags.parameters(),
                *own_flags(own),
            ],
        )

    return decorate


def is_argument(parameter: inspect.Parameter) -> bool:
    return any(isinstance(each, typer.models.ArgumentInfo) for each in typing.get_args(parameter.annotation))


def own_flags(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    return [parameter for parameter in parameters if not is_argument(parameter)]


def own_parameters(verb: Callable[..., None], *, without: str) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(verb, include_extras=True)
    return [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(verb).parameters.items()
        if name != without
    ]


def signed(command: Callable[..., None], parameters: list[inspect.Parameter]) -> Callable[..., None]:
    """typer reads the signature and the annotations of what it is given."""
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def use_study_file(ctx: typer.Context, config: Path | None) -> Path | None:
    """Runs before the other flags are looked at: what the file says becomes their defaults."""
    path = config or STUDY_FILE
    if ctx.resilient_parsing or (config is None and not path.is_file()):
        return None
    defaults = read_study_file(path, STUDY_SETTINGS)
    ctx.default_map = defaults
    # A file that was not named must not work unseen.
    sys.stderr.write(f"settings from {path}: {', '.join(defaults) or 'none'}\n")
    return path


Config = Annotated[
    Path | None,
    typer.Option(
        help="TOML file with these flags (_ for -); default: ./speclift.toml if it exists. Flags win.",
        rich_help_panel=STUDY,
        metavar="FILE",
        callback=use_study_file,
        is_eager=True,
    ),
]


CONTEXT_PARAMETER = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
LINE_PARAMETERS = [
    inspect.Parameter(
        "words",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            list[str] | None,
            typer.Argument(metavar="-- COMMAND…", help="Your own serving command, as you type it."),
        ],
    ),
    inspect.Parameter(
        "from_file",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            Path | None,
            typer.Option(
                "--from",
                metavar="FILE",
                help="Read it from a script, Python code, YAML, a manifest or a unit file.",
                rich_help_panel=COMPARED,
            ),
        ],
    ),
]


def is_typed(ctx: typer.Context, key: str) -> bool:
    source = ctx.get_parameter_source(key)
    return source is not None and source.name == "COMMANDLINE"


def brought_line(
    ctx: typer.Context, options: dict[str, object], *, is_planned: bool = False
) -> dict[str, object] | None:
    """Settings from the pasted line, taken out of what a command was called with; None where there is none. What was
    understood is said at once, before anything takes time."""
    words, path = options.pop("words"), options.pop("from_file")
    if not words and path is None:
        return None
    from speclift.core.errors import UsageError
    from speclift.verbs.lint import read_pasted
    from speclift.verbs.user_command import brought

    if words and path is not None and is_typed(ctx, "from_file"):
        raise UsageError("a line came after -- and another one with --from", hint="give one of them")
    engine = str(ctx.params["engine"]) if is_typed(ctx, "engine") else None
    assert path is None or isinstance(path, Path)
    assert words is None or isinstance(words, list)
    programs = {name: ctx.params.get(name) for name in ("vllm_python", "llama_server")}
    command = words if words or path is None else read_pasted(path)
    line = brought(command, engine=engine, programs=programs)
    for said in line.said:
        sys.stderr.write(f"{said}\n")
    return dict(line.planned if is_planned else line.settings)


def takes_ask(verb: Callable[..., None]) -> Callable[..., None]:
    """A verb(ask, ...) as a command whose flags are those of an Ask, --config and its own, and which takes a serving
    command after -- or from a file. What is said before -- wins over the line, the line over speclift.toml."""
    flags, own = Flags(Ask), own_parameters(verb, without="ask")
    shared = flags.parameters()
    STUDY_SETTINGS.update(settings_of([*shared, *own, LINE_PARAMETERS[1]]))

    @functools.wraps(verb)
    def command(ctx: typer.Context, **options: object) -> None:
        options.pop("config")
        ask = _ask(ctx, options, flags)
        # The file may change later; the study keeps what it said, in front of a line that follows.
        words = sys.argv[1:]
        end = words.index("--") if "--" in words else len(words)
        said = as_flags(from_file(ctx), STUDY_SETTINGS)
        verb(replace(ask, argv=(*words[:end], *said, *words[end:])), **options)

    return signed(
        command,
        [
            CONTEXT_PARAMETER,
            *LINE_PARAMETERS,
            *shared,
            *own,
            inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Config),
        ],
    )


def _ask(ctx: typer.Context, options: dict[str, object], flags: Flags) -> Ask:
    """What a command was called with, its own flags excepted, which stay in `options`."""
    values = flags.given(options)
    line = brought_line(ctx, options)
    if line is not None:
        typed = flags.typed(ctx)
        values |= {name: value for name, value in line.items() if name not in typed}
    return Ask.of(**values)


def ask_in(ctx: typer.Context) -> tuple[Ask, dict[str, object]]:
    """What a measuring verb that was parsed and not run asks for, and the values of its own flags."""
    options = dict(ctx.params)
    options.pop("config")
    return _ask(ctx, options, Flags(Ask)), options


def from_file(ctx: typer.Context) -> Mapping[str, object]:
    """What the study file says, by parameter, as far as the command line does not say otherwise."""
    return {
        name: value
        for name, value in (ctx.default_map or {}).items()
        if (source := ctx.get_parameter_source(name)) is not None and source.name == "DEFAULT_MAP"
    }
