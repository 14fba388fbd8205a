"""Both pools and the gateway before them, as files to deploy: Compose, Kubernetes, systemd. Pure.

The plain pool is the study's baseline. Callers reach the gateway alone, with a token that is a named variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from speclift import __version__
from speclift.core.errors import StudyError
from speclift.core.quantities import printable
from speclift.views.deploying import (
    EVERYWHERE,
    DeploymentText,
    comments_of,
    compose_service,
    exec_line,
    for_compose,
    for_kubernetes,
    image_of,
    kubernetes_deployment,
    kubernetes_labels,
    kubernetes_server,
    kubernetes_service,
    notes_of,
    probe,
    secret_variable,
    server_unit_text,
)
from speclift.views.yaml_files import yaml_file

POLICY_FILE = "policy.toml"
GATEWAY_COMPOSE_FILE, GATEWAY_KUBERNETES_FILE = "gateway-compose.yaml", "gateway-kubernetes.yaml"
SPEC_NAME, PLAIN_NAME, GATEWAY_NAME = "speclift-spec", "speclift-plain", "speclift-gateway"
SPEC_UNIT, PLAIN_UNIT, GATEWAY_UNIT = (f"{name}.service" for name in (SPEC_NAME, PLAIN_NAME, GATEWAY_NAME))
POLICY_FOLDER = "/etc/speclift"
TOKEN = "SPECLIFT_TOKEN"
PORT = 8900
HEALTH = "/healthz"
# Until it is killed: the minute that the gateway itself gives to streams that are under way, and some.
STOP_S = 90
IMAGE = f"speclift:{__version__}"
IMAGE_NOTE = f"Note: {IMAGE} is an image of your own: FROM python:3.12-slim, with speclift's wheel installed."


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayText:
    """The winner and the baseline of one study, and the policy that it allows."""

    spec: DeploymentText
    plain: DeploymentText
    policy: str

    @property
    def head(self) -> tuple[str, ...]:
        return (
            *self.spec.head,
            "Callers ask the gateway, which sends each request to the pool where the policy says it is fastest.",
        )


def gateway_compose_text(text: GatewayText) -> str:
    """The servers have no port outside: only the gateway is reached."""
    spec, plain = text.spec.server, text.plain.server
    gateway: dict[str, object] = {
        "image": IMAGE,
        "entrypoint": ["speclift"],
        "command": [
            for_compose(word)
            for word in _words(
                text, spec=f"http://spec:{spec.port}", plain=f"http://plain:{plain.port}", host=EVERYWHERE
            )
        ],
        "ports": [f"127.0.0.1:{PORT}:{PORT}"],
        "restart": "unless-stopped",
        # Without a value Compose takes it from the environment of whoever starts it.
        "environment": dict.fromkeys(_secrets(text)),
        "volumes": [
            {
                "type": "bind",
                "source": f"./{POLICY_FILE}",
                "target": f"{POLICY_FOLDER}/{POLICY_FILE}",
                "read_only": True,
            }
        ],
        "stop_grace_period": f"{STOP_S}s",
        "healthcheck": {
            "test": [
                *("CMD", "python", "-c"),
                f"import urllib.request; urllib.request.urlopen('http://127.0.0.1:{PORT}{HEALTH}', timeout=5)",
            ],
            "interval": "30s",
            "timeout": "10s",
        },
        "depends_on": ["spec", "plain"],
    }
    services = {
        "spec": compose_service(spec, first_gpu=0),
        "plain": compose_service(plain, first_gpu=spec.gpus),
        "gateway": gateway,
    }
    return yaml_file({"services": services}, head=_container_head(text))


def gateway_kubernetes_text(text: GatewayText) -> str:
    spec, plain = text.spec.server, text.plain.server
    container: dict[str, object] = {
        "name": "gateway",
        "image": IMAGE,
        "command": ["speclift"],
        "args": [
            for_kubernetes(word)
            for word in _words(
                text,
                spec=f"http://{SPEC_NAME}:{spec.port}",
                plain=f"http://{PLAIN_NAME}:{plain.port}",
                host=EVERYWHERE,
            )
        ],
        "ports": [{"name": "http", "containerPort": PORT}],
        "readinessProbe": probe(HEALTH, tries=3),
        "livenessProbe": probe(HEALTH, tries=6),
        "env": [secret_variable(name) for name in _secrets(text)],
        "volumeMounts": [{"name": "policy", "mountPath": POLICY_FOLDER, "readOnly": True}],
    }
    pod: dict[str, object] = {
        "containers": [container],
        "terminationGracePeriodSeconds": STOP_S,
        "volumes": [{"name": "policy", "configMap": {"name": GATEWAY_NAME}}],
    }
    policy = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": GATEWAY_NAME, "labels": kubernetes_labels(GATEWAY_NAME)},
        "data": {POLICY_FILE: text.policy},
    }
    return yaml_file(
        *kubernetes_server(text.spec, name=SPEC_NAME),
        *kubernetes_server(text.plain, name=PLAIN_NAME),
        policy,
        kubernetes_deployment(GATEWAY_NAME, pod, port=PORT, annotations={}),
        kubernetes_service(GATEWAY_NAME, PORT),
        head=_container_head(text),
    )


def gateway_units(text: GatewayText) -> dict[str, str]:
    """On one machine: the plain server listens on the port after that of the other. StudyError where that cannot be
    said to it."""
    spec = text.spec.server
    if spec.is_container:
        raise StudyError(
            f"each server is started by `{printable(' '.join(spec.program[:2]))}`, which says where it listens",
            hint="give each a port of its own, and start speclift gateway before them",
        )
    plain = replace(text.plain.server, port=spec.port + 1)
    words = _words(
        text, spec=f"http://127.0.0.1:{spec.port}", plain=f"http://127.0.0.1:{plain.port}", host="127.0.0.1"
    )
    lines = [
        *comments_of(text.head),
        "[Unit]",
        "Description=Each request to the pool where it is fastest (speclift gateway)",
        f"After={SPEC_UNIT} {PLAIN_UNIT}",
        f"Wants={SPEC_UNIT} {PLAIN_UNIT}",
        "",
        "[Service]",
        f"ExecStart={exec_line(('/usr/bin/env', 'speclift', *words))}",
        f"# Has to set {', '.join(_secrets(text))}; readable by root alone.",
        f"EnvironmentFile={POLICY_FOLDER}/gateway.env",
        "# The policy is read anew; no stream is dropped.",
        "ExecReload=/bin/kill -HUP $MAINPID",
        f"TimeoutStopSec={STOP_S}",
        "Restart=on-failure",
        "RestartSec=5",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
        "",
    ]
    return {
        SPEC_UNIT: server_unit_text(text.spec),
        PLAIN_UNIT: server_unit_text(replace(text.plain, server=plain)),
        GATEWAY_UNIT: "\n".join(lines),
    }


def _words(text: GatewayText, *, spec: str, plain: str, host: str) -> tuple[str, ...]:
    key = text.spec.server.api_key
    return (
        *("gateway", "--spec", spec, "--plain", plain, "--policy", f"{POLICY_FOLDER}/{POLICY_FILE}"),
        *("--listen", f"{host}:{PORT}", "--token-env", TOKEN),
        *(("--api-key-env", key) if key else ()),
    )


def _secrets(text: GatewayText) -> tuple[str, ...]:
    key = text.spec.server.api_key
    return (TOKEN, *((key,) if key else ()))


def _container_head(text: GatewayText) -> Sequence[str]:
    notes = dict.fromkeys(
        note for part in (text.spec, text.plain) for note in notes_of(image_of(part.server))
    )
    return (*text.head, IMAGE_NOTE, *notes)
