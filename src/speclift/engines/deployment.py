"""An arm of a study as the server to run in production, from its engine's own command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from speclift.core.address import HIDDEN
from speclift.core.arm import Arm, ServerSettings
from speclift.core.deployment import Deployment
from speclift.core.engine_spec import EngineSpec
from speclift.core.speculation import drafters_of
from speclift.core.user_command import HUB_TOKEN
from speclift.engines.build import build_engine
from speclift.engines.kind import engine_kind

LOOPBACK = "127.0.0.1"
HOST_FLAG, PORT_FLAG = "--host", "--port"


def deployment_of(spec: EngineSpec, arm: Arm, *, version: str) -> Deployment | None:
    """None where the servers were somebody else's, so that nobody here knows how they are started."""
    kind = engine_kind(spec.kind)
    command = build_engine(spec, version=version).configurations(arm).get("command")
    if command is None:
        return None
    settings = dict(spec.by_arm).get(arm.name, spec.settings)
    parts = _taken_apart(shlex.split(command), settings)
    words, secrets = _without_secrets(parts.words, {**kind.secret_flags, "--hf-token": HUB_TOKEN})
    address: dict[str, str] = {}
    if parts.is_container and settings.line is not None:
        count = len(settings.line.start)
        program, flags = tuple(words[:count]), tuple(words[count:])
    else:
        words, address = _without_address(words)
        program, flags = kind.program_of(words)
    port = address.get(PORT_FLAG, "")
    gpus = settings.tp * settings.pp if kind.is_on_gpu(replace(spec, version=version)) else 0
    hidden = (name for name, value in parts.environment if value == HIDDEN)
    return Deployment(
        arm=arm.name,
        engine=kind.name,
        engine_version=version,
        model=settings.model,
        wrapper=parts.wrapper,
        program=program,
        flags=(*flags, *(flag for flag in kind.watched_with if flag not in flags)),
        host=address.get(HOST_FLAG, LOOPBACK),
        port=int(port) if port.isdecimal() else kind.port,
        health=kind.health,
        variables=tuple(pair for pair in parts.environment if pair[1] != HIDDEN),
        secrets=tuple(dict.fromkeys((*hidden, *secrets))),
        api_key=next((name for name in secrets if name in kind.secret_flags.values()), ""),
        files=_files(settings, arm),
        gpus=gpus,
        image=kind.image(version, on_gpu=gpus > 0),
        is_container=parts.is_container,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    environment: tuple[tuple[str, str], ...]
    wrapper: tuple[str, ...]
    words: Sequence[str]
    is_container: bool = False


def _taken_apart(words: Sequence[str], settings: ServerSettings) -> _Parts:
    """A user's own line has variables and programs before the server."""
    line = settings.line
    if line is None:
        return _Parts(environment=(), wrapper=(), words=words)
    before = len(line.environment) + len(line.wrapper)
    return _Parts(
        environment=line.environment,
        wrapper=line.wrapper,
        words=words[before:],
        is_container=line.is_in_container,
    )


def _without_secrets(words: Sequence[str], variables: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The words less every hidden value, and the variables that the server reads instead."""
    kept: list[str] = []
    found: list[str] = []
    for word in words:
        name, equals, value = word.partition("=")
        plain = name.replace("_", "-") if name.startswith("--") else name
        if plain in variables and (not equals or value == HIDDEN):
            found.append(variables[plain])
        elif word != HIDDEN:
            kept.append(word.removesuffix(f"={HIDDEN}"))
    return kept, found


def _without_address(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The words less where the server listens, and that; the last one given counts."""
    kept: list[str] = []
    address: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name in (HOST_FLAG, PORT_FLAG):
            address[name] = value if equals else next(rest, "")
        else:
            kept.append(word)
    return kept, address


def _files(settings: ServerSettings, arm: Arm) -> tuple[str, ...]:
    """Of the target and its drafts, those that are no names on a hub."""
    drafts = [getattr(drafter, "model", None) for drafter in drafters_of(arm.speculation)]
    models = [settings.model, *(draft for draft in drafts if isinstance(draft, str))]
    return tuple(dict.fromkeys(path for path in models if path.startswith("/")))
