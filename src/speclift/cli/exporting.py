"""export: what a study found, as files for production."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from speclift.cli.options import Json
from speclift.cli.screens import write_json
from speclift.core.errors import UsageError
from speclift.core.flags import read_duration_s

if TYPE_CHECKING:
    from speclift.verbs.export import Exported
    from speclift.views.documents import ExportDocument

# numpy and scipy are imported where they are used: --help must not wait for them.


def export_command(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="A study directory.")],
    to: Annotated[
        str,
        typer.Option(
            metavar="FORMAT",
            help="vllm, llama-server, compose, kubernetes, systemd, prometheus-rules, grafana or gateway.",
        ),
    ],
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|DIR", help="Where to write; default: standard output, where it is one file."
        ),
    ] = None,
    arm: Annotated[
        str | None, typer.Option(metavar="NAME", help="This arm instead of the winner; baseline too.")
    ] = None,
    window: Annotated[
        str, typer.Option(metavar="TIME", help="What rules and panels look back over.")
    ] = "10m",
    as_json: Json = False,
) -> None:
    """Export the winner's deployment, alert rules and a dashboard from what was measured, or a gateway's policy."""
    from speclift.studies.outputs import relative
    from speclift.verbs.export import export, write_exported

    exported = export(study, to=to, arm=arm, window_s=read_duration_s(window, "--window"))
    written = write_exported(exported, out) if out is not None else ()
    if as_json:
        write_json(_document(exported, study=relative(study)))
    elif written:
        sys.stdout.write("".join(f"{relative(path)}\n" for path in written))
    else:
        sys.stdout.write(_only_text(exported))


def _only_text(exported: Exported) -> str:
    if len(exported.asked_for) > 1:
        names = ", ".join(file.name for file in exported.asked_for)
        raise UsageError(
            f"--to {exported.format} gives several files: {names}", hint="give a folder: --out deploy/"
        )
    return exported.asked_for[0].text


def _document(exported: Exported, *, study: str) -> ExportDocument:
    return {
        "schema": 1,
        "format": exported.format,
        "study": study,
        "files": [{"name": file.name, "text": file.text} for file in exported.files],
    }
