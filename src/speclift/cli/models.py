"""models fetch, list and inspect."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from speclift.cli.help_page import Verb, example
from speclift.cli.screens import Json, screen, write_json
from speclift.core.arm import EMBEDDED_MODEL
from speclift.core.quantities import printable, size

# The readers of models are imported where they are used: --help must not wait for them.

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Models in speclift's cache, and GGUF files by path.",
    epilog=example("speclift models list"),
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Catalogue name.")]


@app.command("fetch", cls=Verb, epilog=example("speclift models fetch"))
def fetch_command(name: Name = EMBEDDED_MODEL, as_json: Json = False) -> None:
    """Download a catalogue model into the cache."""
    from speclift.weights import models

    console = screen(stderr=True)
    path = models.fetch(name, progress=lambda text: console.print(text, style="dim", markup=False))
    if as_json:
        write_json({"schema": 1, "name": name, "path": str(path), "sha256": models.fingerprint(path)})
    else:
        sys.stdout.write(f"{path}\n")


@app.command("list", cls=Verb, epilog=example("speclift models list"))
def list_command(as_json: Json = False) -> None:
    """List the catalogue's models and which are cached."""
    from speclift.weights import models
    from speclift.weights.models import BUNDLED

    listed = models.list_models()
    if as_json:
        rows = [{**asdict(model), "path": str(model.path)} for model in listed]
        drafts = [{**asdict(draft), "path": str(draft.path)} for draft in BUNDLED.values()]
        write_json({"schema": 1, "models": rows, "bundled_drafts": drafts})
        return
    from rich.table import Table

    table = Table()
    for column in ("name", "cached", "path"):
        table.add_column(column)
    for model in listed:
        table.add_row(model.name, "yes" if model.is_cached else "no", str(model.path))
    for draft in BUNDLED.values():
        table.add_row(draft.name, "bundled", str(draft.path))
    screen(stderr=False).print(table)


@app.command("inspect", cls=Verb, epilog=example("speclift models inspect smollm2-135m"))
def inspect_command(
    reference: Annotated[str, typer.Argument(metavar="MODEL", help="GGUF path or catalogue name.")],
    as_json: Json = False,
) -> None:
    """Show the shape of a model file, read from its header."""
    from speclift.weights import models
    from speclift.weights.gguf_file import inspect_gguf

    info = inspect_gguf(models.resolve(reference))
    facts = {**asdict(info), "path": str(info.path)}
    if as_json:
        write_json({"schema": 1, **facts})
        return
    from rich.table import Table

    table = Table(show_header=False)
    for key, value in facts.items():
        shown = size(value) if key == "file_bytes" else printable(str(value), limit=100)
        table.add_row(key.replace("_", " "), shown)
    screen(stderr=False).print(table)
