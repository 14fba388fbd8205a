"""Templates of pages: text is escaped by the template engine, and made visible where it could act on its reader
(control and bidirectional characters), wherever a template prints it."""

from __future__ import annotations

import shlex
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from speclift.core.quantities import number, printable, ratio_words, seconds, share
from speclift.views.time_words import command_time

NAME_CHARACTERS = 64
LINE_CHARACTERS = 4000


@cache
def page_template(name: str) -> Template:
    """Reading it takes as long as all the rest of a report."""
    environment = Environment(
        loader=PackageLoader("speclift.views"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    environment.filters.update(
        seconds=seconds,
        share=share,
        number=number,
        name=lambda text: printable(text, limit=NAME_CHARACTERS),
        ratio=ratio_words,
        command_time=command_time,
        shell=shlex.join,
    )
    return environment.get_template(name)


def _visible(value: object) -> object:
    """Whatever a template prints: text of others shows what it hides."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    if len(value) <= LINE_CHARACTERS and value.isascii() and value.isprintable():
        return value
    return "\n".join(printable(line, limit=LINE_CHARACTERS) for line in value.splitlines())
