"""A server that won, as files to deploy it with: a script, Compose, Kubernetes, systemd. Pure.

Every text is quoted by the rules of the file it stands in: what a model or an arm is called is a name there and nothing
else. Secrets are named variables.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from speclift.core.deployment import ContainerImage, Deployment
from speclift.core.errors import StudyError
from speclift.core.quantities import printable
from speclift.views.yaml_files import yaml_file

SCRIPT_FILE, COMPOSE_FILE, KUBERNETES_FILE = "serve.sh", "compose.yaml", "kubernetes.yaml"
SERVER_UNIT, WATCH_UNIT = "speclift-server.service", "speclift-watch.service"
SECRETS = "speclift-secrets"
NAME_LABEL = "app.kubernetes.io/name"
ENVIRONMENT_FILE = "EnvironmentFile=/etc/speclift/server.env"
WATCH_ADDRESS = "127.0.0.1:9400"
EVERYWHERE = "0.0.0.0"
# Weights are read and kernels compiled before a server answers: an hour is what the largest take from a slow disk.
START_PERIOD_S, START_TRIES = 10, 360
# Kubernetes' longest name of a service.
NAME_MAX = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentText:
    """A deployment with what its files say about where it comes from."""

    server: Deployment
    # One line each, for readers.
    head: tuple[str, ...]


def script_text(text: DeploymentText) -> str:
    server = text.server
    exports = [f"export {name}={shlex.quote(value)}" for name, value in server.variables]
    needed = [f': "${{{name}:?set {name} in the environment}}"' for name in server.secrets]
    command = " \\\n  ".join(shlex.join(line) for line in _by_flag(server.words()))
    return "\n".join(
        ["#!/bin/sh", *comments_of(text.head), "set -eu", *exports, *needed, f"exec {command}", ""]
    )


def _by_flag(words: Sequence[str]) -> list[list[str]]:
    """A flag and its values to a line."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("-") and lines[-1]:
            lines.append([])
        lines[-1].append(word)
    return lines


def comments_of(head: Sequence[str]) -> list[str]:
    return [f"# {printable(line, limit=400)}" for line in head]


def compose_text(text: DeploymentText) -> str:
    server, image = text.server, image_of(text.server)
    # On this machine alone: whoever opens it further decides who may ask.
    ports = {"ports": [f"127.0.0.1:{server.port}:{server.port}"]}
    document = {"services": {_name(server): {**compose_service(server), **ports}}}
    return yaml_file(document, head=[*text.head, *notes_of(image)])


def compose_service(server: Deployment, *, first_gpu: int | None = None) -> dict[str, object]:
    """Without ports. `first_gpu` where several servers share a machine, so that each has its own: a mere count would
    give all of them the first."""
    image = image_of(server)
    service: dict[str, object] = {
        "image": image.reference,
        "entrypoint": [for_compose(word) for word in image.program or server.program],
        "command": [for_compose(word) for word in _container_words(server)],
        "restart": "unless-stopped",
        "healthcheck": {
            "test": ["CMD", "curl", "-fsS", f"http://127.0.0.1:{server.port}{server.health}"],
            "interval": "30s",
            "timeout": "10s",
            "start_period": f"{START_PERIOD_S * START_TRIES}s",
        },
    }
    # Without a value Compose takes it from the environment of whoever starts it.
    environment: dict[str, str | None] = dict.fromkeys(server.secrets)
    environment |= {name: for_compose(value) for name, value in server.variables}
    if environment:
        service["environment"] = environment
    if server.files:
        service["volumes"] = [
            {"type": "bind", "source": for_compose(path), "target": for_compose(path), "read_only": True}
            for path in _folders(server.files)
        ]
    if server.gpus:
        which: dict[str, object] = {"count": server.gpus}
        if first_gpu is not None:
            which = {"device_ids": [str(first_gpu + number) for number in range(server.gpus)]}
        devices = [{"driver": "nvidia", **which, "capabilities": ["gpu"]}]
        service["deploy"] = {"resources": {"reservations": {"devices": devices}}}
        service["ipc"] = "host"  # tensors pass between the processes of one server
    return service


def for_compose(text: str) -> str:
    """Compose fills in variables."""
    return text.replace("$", "$$")


def kubernetes_text(text: DeploymentText) -> str:
    notes = notes_of(image_of(text.server))
    return yaml_file(*kubernetes_server(text, name=_name(text.server)), head=[*text.head, *notes])


def kubernetes_server(text: DeploymentText, *, name: str) -> tuple[dict[str, object], dict[str, object]]:
    """Its Deployment and its Service."""
    server = text.server
    deployment = kubernetes_deployment(
        name,
        _pod(server, image_of(server)),
        port=server.port,
        annotations=_annotations(text),
    )
    return deployment, kubernetes_service(name, server.port)


def kubernetes_deployment(
    name: str, pod: dict[str, object], *, port: int, annotations: dict[str, str]
) -> dict[str, object]:
    labels = kubernetes_labels(name)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {NAME_LABEL: name}},
            "template": {
                "metadata": {
                    "labels": labels,
                    "annotations": {
                        "prometheus.io/scrape": "true",
                        "prometheus.io/port": str(port),
                        "prometheus.io/path": "/metrics",
                    },
                },
                "spec": pod,
            },
        },
    }


def kubernetes_service(name: str, port: int) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": kubernetes_labels(name)},
        "spec": {
            "selector": {NAME_LABEL: name},
            "ports": [{"name": "http", "port": port, "targetPort": "http"}],
        },
    }


def kubernetes_labels(name: str) -> dict[str, str]:
    return {NAME_LABEL: name, "app.kubernetes.io/managed-by": "speclift"}


def _pod(server: Deployment, image: ContainerImage) -> dict[str, object]:
    mounts, volumes = _volumes(server)
    container: dict[str, object] = {
        "name": "server",
        "image": image.reference,
        "command": [for_kubernetes(word) for word in image.program or server.program],
        "args": [for_kubernetes(word) for word in _container_words(server)],
        "ports": [{"name": "http", "containerPort": server.port}],
        "startupProbe": probe(server.health, tries=START_TRIES),
        "readinessProbe": probe(server.health, tries=3),
        "livenessProbe": probe(server.health, tries=6),
    }
    variables: list[dict[str, object]] = [
        {"name": name, "value": for_kubernetes(value)} for name, value in server.variables
    ]
    variables += [secret_variable(name) for name in server.secrets]
    if variables:
        container["env"] = variables
    if server.gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": server.gpus}}
    if mounts:
        container["volumeMounts"] = mounts
    return {"containers": [container], **({"volumes": volumes} if volumes else {})}


def secret_variable(name: str) -> dict[str, object]:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": SECRETS, "key": name}}}


def probe(path: str, *, tries: int) -> dict[str, object]:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": START_PERIOD_S,
        "timeoutSeconds": 5,
        "failureThreshold": tries,
    }


def _volumes(server: Deployment) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    mounts: list[dict[str, object]] = []
    volumes: list[dict[str, object]] = []
    for number, folder in enumerate(_folders(server.files)):
        mounts.append({"name": f"models-{number}", "mountPath": folder, "readOnly": True})
        volumes.append({"name": f"models-{number}", "hostPath": {"path": folder, "type": "Directory"}})
    if server.gpus > 1:
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    return mounts, volumes


def _annotations(text: DeploymentText) -> dict[str, str]:
    server = text.server
    return {
        "speclift/arm": printable(server.arm),
        "speclift/engine-version": printable(server.engine_version),
        "speclift/model": printable(server.model),
    }


def for_kubernetes(text: str) -> str:
    """`$(NAME)` is filled in, and two dollar signs become one."""
    return text.replace("$", "$$")


def server_unit_text(text: DeploymentText) -> str:
    server = text.server
    lines = [
        *comments_of(text.head),
        "[Unit]",
        f"Description=LLM server, arm {_for_description(server.arm)}",
        "After=network-online.target",
        "Wants=network-online.target",
        "",
        "[Service]",
        f"ExecStart={exec_line(('/usr/bin/env', *server.words()))}",
        *(f"Environment={_quoted(f'{name}={value}')}" for name, value in server.variables),
    ]
    if server.secrets:
        lines += [
            f"# Has to set {', '.join(server.secrets)}; readable by root alone.",
            ENVIRONMENT_FILE,
        ]
    lines += ["Restart=on-failure", "RestartSec=5", f"TimeoutStartSec={START_PERIOD_S * START_TRIES}"]
    return "\n".join([*lines, "", "[Install]", "WantedBy=multi-user.target", ""])


def watch_unit_text(text: DeploymentText, *, study: str) -> str:
    """The service that says whether it still pays, beside the server."""
    server = text.server
    words = (
        *("/usr/bin/env", "speclift", "watch", "--listen", WATCH_ADDRESS, "--study", study),
        *(("--api-key-env", server.api_key) if server.api_key else ()),
        f"http://127.0.0.1:{server.port}",
    )
    lines = [
        *comments_of(text.head),
        "[Unit]",
        "Description=Does speculative decoding still pay? (speclift watch)",
        f"After={SERVER_UNIT}",
        "",
        "[Service]",
        f"ExecStart={exec_line(words)}",
        *([ENVIRONMENT_FILE] if server.api_key else []),
        "ExecReload=/bin/kill -HUP $MAINPID",
        "Restart=on-failure",
        "RestartSec=5",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
        "",
    ]
    return "\n".join(lines)


_BARE = re.compile(r"[\w@+:,./=-]+", re.ASCII)


def exec_line(words: Sequence[str]) -> str:
    return " ".join(_quoted(word.replace("$", "$$")) for word in words)


def _quoted(word: str) -> str:
    """systemd.syntax(7): C escapes in double quotes; a percent sign is doubled everywhere."""
    if _BARE.fullmatch(word):
        return word
    escaped = "".join(_escaped(character) for character in word)
    return f'"{escaped.replace("%", "%%")}"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character < " " or character == "\x7f":
        return f"\\x{ord(character):02x}"
    return character


def _for_description(text: str) -> str:
    return printable(text).replace("%", "%%").rstrip("\\")


def _container_words(server: Deployment) -> tuple[str, ...]:
    return (*server.flags, *server.listening(EVERYWHERE))


def image_of(server: Deployment) -> ContainerImage:
    """StudyError where there is none that would run what was measured."""
    if server.is_container or server.wrapper:
        started = " ".join((*server.wrapper, *server.program[:2]))
        raise StudyError(
            f"this server is started by `{printable(started)}`, which says by itself how its container is run",
            hint="export the line with --to vllm or llama-server, or as a unit with --to systemd",
        )
    if server.image is None:
        raise StudyError(
            f"no container image is known that holds {printable(server.engine_version)}",
            hint="export it with --to systemd",
        )
    return server.image


def notes_of(image: ContainerImage) -> list[str]:
    return [f"Note: {image.note}"] if image.note else []


def _folders(files: Sequence[str]) -> list[str]:
    """Where files lie; a folder of a model is itself."""
    found = (
        str(PurePosixPath(path).parent) if PurePosixPath(path).suffix == ".gguf" else path for path in files
    )
    return list(dict.fromkeys(found))


def _name(server: Deployment) -> str:
    """A name that Compose and Kubernetes take, whatever the arm is called."""
    plain = re.sub(r"[^a-z0-9]+", "-", f"{server.engine}-{server.arm}".lower()).strip("-")
    return plain[:NAME_MAX].strip("-")
