"""export: what a study found, as files for production; of a study file, a job that runs the study."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from speclift.bench.ask import JobAsk
from speclift.cli.options import STUDY_SETTINGS, Flags, ask_in, from_file, takes
from speclift.cli.screens import Json, write_json
from speclift.cli.study_file import as_flags
from speclift.core.errors import UsageError
from speclift.core.flags import assembled, read_duration_s

if TYPE_CHECKING:
    from speclift.verbs.export import Exported
    from speclift.verbs.export_job import StudyFile
    from speclift.verdict.document import ExportDocument

# numpy and scipy are imported where they are used: --help must not wait for them.

STUDY_FILE_ENDING = ".toml"
# Where results go is the job's own, and what a job shows on a screen nobody sees.
NOT_FOR_JOBS = ("study", "resume", "dry_run", "as_json", "markdown", "out", "on")
FILES_READ = ("prompts", "from_file")
MODELS = ("model", "draft")


@takes(Flags(JobAsk), as_parameter="asked")
def export_command(
    asked: Mapping[str, object],
    *,
    study: Annotated[
        Path, typer.Argument(metavar="STUDY", help="A study directory; or a speclift.toml to run as a job.")
    ],
    to: Annotated[
        str,
        typer.Option(
            metavar="FORMAT",
            help="vllm, llama-server, compose, kubernetes, systemd, prometheus-rules, grafana or gateway; "
            "of a speclift.toml kubernetes-job, ray-job or slurm.",
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
    """Export the winner's deployment, alert rules and a dashboard from what was measured, or a gateway's policy.

    Of a speclift.toml: one file that runs the study on a cluster, with what it will cost in node-hours."""
    from speclift.studies.outputs import relative, require_no_database
    from speclift.verbs.export import export, write_exported

    if out is not None:
        require_no_database(Path(out))
    node_hours = None
    if study.suffix == STUDY_FILE_ENDING and not study.is_dir():
        if arm is not None:
            raise UsageError(f"--arm is for a study that was measured, and {study} is a study file")
        from speclift.verbs.export_job import export_job, require_known

        ask = assembled(JobAsk, asked)
        require_known(to=to, verb=ask.verb)
        job = export_job(_study_file(study, ask.verb), ask, to=to)
        sys.stderr.write(f"{job.cost.sentence()}\n")
        exported, node_hours = job.exported, job.cost.node_hours
    else:
        exported = export(study, to=to, arm=arm, window_s=read_duration_s(window, "--window"))
    written = write_exported(exported, out) if out is not None else ()
    if as_json:
        write_json(_document(exported, study=relative(study), node_hours=node_hours))
    elif written:
        sys.stdout.write("".join(f"{relative(path)}\n" for path in written))
    else:
        sys.stdout.write(_only_text(exported))


def _study_file(path: Path, verb: str) -> StudyFile:
    """Read as the verb itself reads it, with all that it would refuse."""
    from typer.main import get_command

    from speclift.cli.measuring import decide_command, measure_command, tune_command
    from speclift.verbs.export_job import StudyFile

    program = typer.Typer()
    program.command()({"decide": decide_command, "measure": measure_command, "tune": tune_command}[verb])
    with get_command(program).make_context(verb, [f"--config={path}"]) as context:
        ctx = cast(typer.Context, context)
        ask, own = ask_in(ctx)
        said = dict(from_file(ctx))
    if own.get("dry_run"):
        raise UsageError(f"{path}: 'dry_run' measures nothing", hint="leave it out of a study that is to run")
    files = []
    for key in FILES_READ:
        if key in said:
            files.append(Path(str(said[key])).absolute())
            said[key] = str(files[-1])
    for key in MODELS:
        if key in said:
            value = said[key]
            said[key] = [_placed(each) for each in value] if isinstance(value, list) else _placed(value)
    flags = as_flags({key: value for key, value in said.items() if key not in NOT_FOR_JOBS}, STUDY_SETTINGS)
    ask = replace(
        ask,
        server=replace(ask.server, model=_placed(ask.server.model)),
        drafts=tuple(_placed(draft) for draft in ask.drafts),
        verify="off" if own.get("no_verify") else str(own.get("verify", ask.verify)),
    )
    return StudyFile(path=path, ask=ask, flags=flags, files=tuple(files))


def _placed(model: object) -> str:
    """A model that is a file or a folder here by its absolute path; names stay as they are."""
    name = str(model)
    return str(Path(name).absolute()) if name and os.path.lexists(name) else name


def _only_text(exported: Exported) -> str:
    if len(exported.asked_for) > 1:
        names = ", ".join(file.name for file in exported.asked_for)
        raise UsageError(
            f"--to {exported.format} gives several files: {names}", hint="give a folder: --out deploy/"
        )
    return exported.asked_for[0].text


def _document(exported: Exported, *, study: str, node_hours: float | None) -> ExportDocument:
    import msgspec

    from speclift.verdict.document import ExportDocument, ExportedFile

    return ExportDocument(
        schema=1,
        format=exported.format,
        study=study,
        files=tuple(ExportedFile(name=file.name, text=file.text) for file in exported.files),
        node_hours=msgspec.UNSET if node_hours is None else node_hours,
    )
