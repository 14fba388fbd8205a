"""A study that is still to be measured, as one file that runs it on a cluster: a Kubernetes Job, a RayJob, a Slurm
script. Pure.

All three run the same shell script, so that a name or a path passes through one kind of quoting, and YAML holds the
script as a text. Secrets are named variables. Prompts and pasted lines are mounted: none of them stands in the file.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from speclift.core.quantities import printable
from speclift.core.units import Seconds
from speclift.views.deploying import NAME_LABEL, SECRETS, comments_of, kubernetes_labels
from speclift.views.yaml_files import LinesOfText, yaml_file

KUBERNETES_JOB_FILE, RAY_JOB_FILE, SLURM_FILE = "kubernetes-job.yaml", "ray-job.yaml", "study.sbatch"
CACHE, RESULTS, INPUTS, SCRIPTS = "/cache", "/results", "/inputs", "/etc/speclift"
CACHE_CLAIM, RESULTS_CLAIM = "speclift-models", "speclift-results"
HUB_HOME, SCRIPT_NAME = "HF_HOME", "run.sh"
# A study that ended for a reason of its machine goes on where it stopped, on another node.
RETRIES = 2
# Servers are stopped and records are committed in it.
GRACE_S = 120
# KubeRay takes names of RayJobs of up to 41 characters, so that those of their pods fit.
JOB_NAME_MAX = 40
EXIT_USAGE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInput:
    """A file of the user's that the study reads: where it lies here, and what it is called in a volume."""

    path: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyJob:
    name: str
    verb: str
    # Of the verb, without where the study lies; inputs and models that are files by their absolute paths.
    flags: tuple[str, ...]
    # Those that a study may be resumed with.
    resuming: tuple[str, ...]
    # The study's directory where the results go, and its absolute path where the study file names one.
    study: str
    study_path: str | None
    inputs: tuple[JobInput, ...] = ()
    # Whether they fit into a Secret, which holds 1 MiB.
    are_inputs_small: bool = True
    model_folders: tuple[str, ...] = ()
    nodes: int = 1
    gpus: int = 0
    secrets: tuple[str, ...] = ()
    # Taken where they are there.
    optional_secrets: tuple[str, ...] = ()
    image: str
    # What a reader has to know of it; empty where they chose it.
    image_note: str = ""
    limit_s: Seconds
    head: tuple[str, ...]

    @property
    def inputs_name(self) -> str:
        return f"{self.name}-inputs"


def kubernetes_job_text(job: StudyJob) -> str:
    labels = kubernetes_labels(job.name)
    document = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job.name, "labels": labels},
        "spec": {
            "backoffLimit": RETRIES,
            "activeDeadlineSeconds": round(job.limit_s),
            # What is wrong with the study file is wrong on every node.
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "FailJob",
                        "onExitCodes": {"containerName": "study", "operator": "In", "values": [EXIT_USAGE]},
                    }
                ]
            },
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": GRACE_S,
                    **_pod(job, "study", gpus=job.gpus, command=["/bin/sh", f"{SCRIPTS}/{SCRIPT_NAME}"]),
                },
            },
        },
    }
    head = [*job.head, *_cluster_notes(job), f"Start it: kubectl apply -f {KUBERNETES_JOB_FILE}"]
    return yaml_file(_script_map(job), document, head=head)


def ray_job_text(job: StudyJob) -> str:
    """The study's own process is on the head, which has no GPU; servers are launched on the workers."""
    labels = kubernetes_labels(job.name)
    document = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": job.name, "labels": labels},
        "spec": {
            # No text of the user's: it passes through two shells and Ray's own joining of words.
            "entrypoint": f"/bin/sh {SCRIPTS}/{SCRIPT_NAME}",
            "backoffLimit": RETRIES,
            "activeDeadlineSeconds": round(job.limit_s),
            "shutdownAfterJobFinishes": True,
            "rayClusterSpec": {
                "headGroupSpec": {
                    "rayStartParams": {"num-cpus": "0", "num-gpus": "0"},
                    "template": {"metadata": {"labels": labels}, "spec": _pod(job, "ray-head", gpus=0)},
                },
                "workerGroupSpecs": [
                    {
                        "groupName": "servers",
                        "replicas": job.nodes,
                        "minReplicas": job.nodes,
                        "maxReplicas": job.nodes,
                        "rayStartParams": {},
                        "template": {
                            "metadata": {"labels": labels},
                            "spec": {
                                # A node is a block: two workers on one machine would disturb each other.
                                "affinity": _apart(job.name),
                                **_pod(job, "ray-worker", gpus=job.gpus),
                            },
                        },
                    }
                ],
            },
        },
    }
    head = [*job.head, *_cluster_notes(job), f"Start it, where KubeRay runs: kubectl apply -f {RAY_JOB_FILE}"]
    return yaml_file(_script_map(job), document, head=head)


def slurm_text(job: StudyJob) -> str:
    minutes = max(1, -(-round(job.limit_s) // 60))
    directives = [
        f"--job-name={job.name}",
        "--nodes=1",
        "--ntasks=1",
        "--exclusive",
        *([f"--gpus-per-node={job.gpus}"] if job.gpus else []),
        f"--time={minutes}",
        f"--signal=B:TERM@{GRACE_S}",
        "--requeue",
        "--open-mode=append",
        f"--output={job.name}-%j.log",
    ]
    where = (
        shlex.quote(job.study_path)
        if job.study_path is not None
        else f'"${{SLURM_SUBMIT_DIR:-$PWD}}"/studies/{shlex.quote(job.study)}'
    )
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {directive}" for directive in directives),
            *comments_of([*job.head, f"Start it: sbatch {SLURM_FILE}"]),
            f'export {HUB_HOME}="${{{HUB_HOME}:-$HOME/.cache/huggingface}}"',
            *_script_lines(job, where, {}),
            "",
        ]
    )


def run_script(job: StudyJob) -> str:
    """As it runs in a container."""
    moved = {each.path: f"{INPUTS}/{each.key}" for each in job.inputs}
    where = shlex.quote(f"{RESULTS}/{job.study}")
    return "\n".join(["#!/bin/sh", *_script_lines(job, where, moved), ""])


def _script_lines(job: StudyJob, where: str, moved: Mapping[str, str]) -> list[str]:
    flags = [moved.get(flag, flag) for flag in job.flags]
    begun = shlex.join([job.verb, *job.resuming])
    asked = [shlex.join(words) for words in _by_flag(flags)]
    return [
        "set -u",
        *(f': "${{{name}:?set {name} in the environment}}"' for name in job.secrets),
        f"study={where}",
        'if [ -e "$study" ]; then',
        f'  set -- {begun} --resume --study "$study"',
        "else",
        " \\\n    ".join([f'  set -- {job.verb} --study "$study"', *asked]),
        "fi",
        'speclift "$@" &',
        "running=$!",
        # A shell that waits ends on a signal and leaves what it started; servers have to be stopped.
        "trap 'kill -TERM \"$running\" 2>/dev/null' TERM INT",
        'wait "$running"; code=$?',
        'while kill -0 "$running" 2>/dev/null; do wait "$running"; code=$?; done',
        "# 3 to 6 are verdicts: the study ended well.",
        'case "$code" in 3|4|5|6) code=0 ;; esac',
        'exit "$code"',
    ]


def _by_flag(words: Sequence[str]) -> list[list[str]]:
    """A flag and its value to a line. Values never begin with a dash: those are tied to their flag."""
    lines: list[list[str]] = []
    for word in words:
        if word.startswith("-") or not lines:
            lines.append([])
        lines[-1].append(word)
    return lines


def _script_map(job: StudyJob) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{job.name}-script", "labels": kubernetes_labels(job.name)},
        "data": {SCRIPT_NAME: LinesOfText(run_script(job))},
    }


def _pod(
    job: StudyJob, container: str, *, gpus: int, command: Sequence[str] | None = None
) -> dict[str, object]:
    mounts, volumes = _volumes(job, gpus=gpus)
    variables: list[dict[str, object]] = [{"name": HUB_HOME, "value": f"{CACHE}/huggingface"}]
    variables += [_secret(name) for name in job.secrets]
    variables += [_secret(name, is_optional=True) for name in job.optional_secrets]
    held: dict[str, object] = {
        "name": container,
        "image": job.image,
        **({"command": list(command)} if command is not None else {}),
        "env": variables,
        **({"resources": {"limits": {"nvidia.com/gpu": gpus}}} if gpus else {}),
        "volumeMounts": mounts,
    }
    return {"containers": [held], "volumes": volumes}


def _secret(name: str, *, is_optional: bool = False) -> dict[str, object]:
    reference: dict[str, object] = {"name": SECRETS, "key": name}
    if is_optional:
        reference["optional"] = True
    return {"name": name, "valueFrom": {"secretKeyRef": reference}}


def _volumes(job: StudyJob, *, gpus: int) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    mounts: list[dict[str, object]] = [
        {"name": "script", "mountPath": SCRIPTS, "readOnly": True},
        {"name": "cache", "mountPath": CACHE},
        {"name": "results", "mountPath": RESULTS},
    ]
    volumes: list[dict[str, object]] = [
        {"name": "script", "configMap": {"name": f"{job.name}-script"}},
        {"name": "cache", "persistentVolumeClaim": {"claimName": CACHE_CLAIM}},
        {"name": "results", "persistentVolumeClaim": {"claimName": RESULTS_CLAIM}},
    ]
    if job.inputs:
        claim = {"persistentVolumeClaim": {"claimName": job.inputs_name, "readOnly": True}}
        secret = {"secret": {"secretName": job.inputs_name}}
        mounts.append({"name": "inputs", "mountPath": INPUTS, "readOnly": True})
        volumes.append({"name": "inputs", **(secret if job.are_inputs_small else claim)})
    for number, folder in enumerate(job.model_folders):
        mounts.append({"name": f"models-{number}", "mountPath": folder, "readOnly": True})
        volumes.append({"name": f"models-{number}", "hostPath": {"path": folder, "type": "Directory"}})
    if gpus > 1:  # tensors pass between the processes of one server
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    return mounts, volumes


def _apart(name: str) -> dict[str, object]:
    term = {
        "labelSelector": {"matchLabels": {NAME_LABEL: name, "ray.io/node-type": "worker"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def _cluster_notes(job: StudyJob) -> list[str]:
    """What has to be there before it is started."""
    notes = [
        *([job.image_note] if job.image_note else []),
        f"Claims of your own: {CACHE_CLAIM} holds the model cache, {RESULTS_CLAIM} gets the study.",
    ]
    named = [*job.secrets, *(f"{name} (if there is one)" for name in job.optional_secrets)]
    if named:
        notes.append(f"The secret {SECRETS} holds {', '.join(named)}.")
    if job.inputs and job.are_inputs_small:
        files = " ".join(shlex.quote(f"--from-file={each.key}={each.path}") for each in job.inputs)
        notes.append(f"First: kubectl create secret generic {job.inputs_name} {files}")
    elif job.inputs:
        files = ", ".join(f"{printable(each.path)} as {each.key}" for each in job.inputs)
        notes.append(f"First: a claim {job.inputs_name} that holds {files}; a Secret takes 1 MiB at most.")
    return notes


def plain_name(text: str, *, limit: int = JOB_NAME_MAX) -> str:
    """A name that Kubernetes, Slurm and a file system take, whatever was written; empty where nothing is left of it."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:limit].strip("-")
