"""How --help looks: plain text, flags in groups, an example to paste at the end."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

PAGE = {"max_content_width": 100}
OTHER_FLAGS = "Options"


class Verb(TyperCommand):
    """A command whose flags stand in groups, named by rich_help_panel, also where rich draws nothing."""

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


def example(*commands: str) -> str:
    """The end of a --help page; \\b keeps a command on one line however narrow the page."""
    title = "Example:" if len(commands) == 1 else "Examples:"
    return "\n".join(("\b", title, *(f"  {command}" for command in commands)))
