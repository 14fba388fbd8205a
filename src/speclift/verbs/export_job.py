"""export of a study file: a study that is still to be measured, as a file that runs it on a cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from speclift import __version__
from speclift.bench.ask import Ask, JobAsk
from speclift.bench.study_cost import StudyCost, study_cost
from speclift.core.address import concealed_within
from speclift.core.errors import UsageError, unknown_name
from speclift.core.quantities import duration, printable
from speclift.core.units import Bytes, Seconds
from speclift.core.user_command import HUB_TOKEN, hidden_words
from speclift.engines.kind import engine_kind
from speclift.verbs.export import Exported, ExportedFile
from speclift.views.study_jobs import (
    KUBERNETES_JOB_FILE,
    RAY_JOB_FILE,
    SLURM_FILE,
    JobInput,
    StudyJob,
    kubernetes_job_text,
    plain_name,
    ray_job_text,
    slurm_text,
)

VERBS = ("decide", "tune", "measure")
RAY_JOB = "ray-job"
ON_RAY = ("--on", "ray")
IMAGE = f"speclift:{__version__}"
# What a Secret holds, less what its names take.
INPUTS_BYTES_MAX: Bytes = 1_000_000
# Models are fetched and read before the first launch is through, and a server may be four times as slow as one
# guesses: a job that is not done by then hangs, or goes on when it is started again.
LIMIT_FACTOR = 4.0
STARTING_S: Seconds = 3600.0
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

Writer = Callable[[StudyJob], str]
FORMATS: Mapping[str, tuple[str, Writer]] = {
    "kubernetes-job": (KUBERNETES_JOB_FILE, kubernetes_job_text),
    RAY_JOB: (RAY_JOB_FILE, ray_job_text),
    "slurm": (SLURM_FILE, slurm_text),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFile:
    """A speclift.toml as it was read: what it asks for, and the same as flags, by which a node asks for it again."""

    path: Path
    ask: Ask
    # Without where the study lies, and with every file by its absolute path.
    flags: tuple[str, ...]
    # Files of the user's that the flags name: prompts, a pasted line.
    files: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedJob:
    exported: Exported
    cost: StudyCost


def export_job(file: StudyFile, ask: JobAsk | None = None, *, to: str) -> ExportedJob:
    ask = ask or JobAsk()
    require_known(to=to, verb=ask.verb)
    if ask.nodes > 1 and to != RAY_JOB:
        raise UsageError(f"--to {to} runs on one node", hint=f"--to {RAY_JOB} runs on --nodes {ask.nodes}")
    _require_sayable(file.flags)
    cost = study_cost(file.ask, verb=ask.verb, nodes=ask.nodes)
    name, write = FORMATS[to]
    job = _job(file, verb=ask.verb, cost=cost, image=ask.image)
    if to == RAY_JOB:
        job = replace(job, flags=(*ON_RAY, *job.flags), resuming=(*ON_RAY, *job.resuming))
    text = write(job)
    return ExportedJob(exported=Exported(format=to, files=(ExportedFile(name=name, text=text),)), cost=cost)


def require_known(*, to: str, verb: str) -> None:
    if to not in FORMATS:
        raise unknown_name(what="format of a study file", seen=to, allowed=tuple(FORMATS))
    if verb not in VERBS:
        raise unknown_name(what="verb that runs as a job", seen=verb, allowed=VERBS)


def _job(file: StudyFile, *, verb: str, cost: StudyCost, image: str | None) -> StudyJob:
    ask = file.ask
    named = "" if ask.study is None else plain_name(ask.study.name)
    name = plain_name(f"speclift-{verb}-{named}" if named else f"speclift-{verb}")
    limit_s = LIMIT_FACTOR * cost.wall_s + STARTING_S
    head = (
        f"Written by speclift {__version__} from {file.path.name}: speclift {verb}, engine {ask.engine}.",
        cost.sentence(),
        f"It is ended after {duration(limit_s)}; started again, it goes on where it stopped.",
    )
    return StudyJob(
        name=name,
        verb=verb,
        flags=file.flags,
        resuming=() if ask.budget_s is None else ("--budget", f"{ask.budget_s:g}s"),
        study=named or name,
        study_path=None if ask.study is None else str(ask.study.absolute()),
        inputs=tuple(_inputs(file.files)),
        are_inputs_small=sum(path.stat().st_size for path in file.files) <= INPUTS_BYTES_MAX,
        model_folders=_model_folders(ask),
        nodes=cost.nodes,
        gpus=cost.gpus_per_node,
        secrets=_secrets(ask),
        optional_secrets=(HUB_TOKEN,),
        image=image or IMAGE,
        image_note=_image_note(ask) if image is None else "",
        limit_s=limit_s,
        head=head,
    )


def _image_note(ask: Ask) -> str:
    kind = engine_kind(ask.engine)
    newest = "" if kind.dialect is None else kind.dialect.newest_text
    engine = kind.image(newest, on_gpu=True) if newest else None
    base = "an image with your engine" if engine is None else engine.reference
    return f"{IMAGE} is an image of your own: FROM {base}, with speclift[ray] installed."


def _inputs(files: tuple[Path, ...]) -> list[JobInput]:
    """Under names that a Secret takes as keys, each its own."""
    found = []
    for number, path in enumerate(dict.fromkeys(files)):
        ending = "".join(
            suffix for suffix in path.suffixes[-2:] if re.fullmatch(r"\.[A-Za-z0-9]{1,8}", suffix)
        )
        found.append(JobInput(path=str(path), key=f"input-{number}{ending}"))
    return found


def _model_folders(ask: Ask) -> tuple[str, ...]:
    """Where models lie that are files on a node: as they are here, by absolute path."""
    models = [model for model in (ask.server.model, *ask.drafts) if model.startswith("/")]
    folders = (
        str(PurePosixPath(model).parent) if PurePosixPath(model).suffix == ".gguf" else model
        for model in models
    )
    return tuple(dict.fromkeys(folders))


def _secrets(ask: Ask) -> tuple[str, ...]:
    name = ask.attach.api_key_env
    if name is None:
        return ()
    if not VARIABLE.fullmatch(name):
        raise UsageError(
            f"api_key_env = {name!r} is no name of a variable", hint="letters, digits and _: OPENAI_API_KEY"
        )
    return (name,)


def _require_sayable(flags: tuple[str, ...]) -> None:
    """No secrets, and nothing that a shell cannot hand on."""
    flag = ""
    for word in flags:
        if word.startswith("-"):
            flag, _, value = word.partition("=")
        else:
            value = word
        if "\0" in value:
            raise UsageError(f"{flag} {printable(value)} holds a zero byte, which no command line can")
        # An argument of an engine is written with or without its dashes.
        forms = (value, f"--{value.lstrip('-')}")
        if concealed_within(value) != value or any(hidden_words((form,)) != (form,) for form in forms):
            raise UsageError(
                f"what {flag} says in the study file holds a secret, and the exported file would too",
                hint='give it by name, such as api_key_env = "OPENAI_API_KEY" for servers that run already',
            )
