"""Compose files and Kubernetes manifests: the command of every container in them, as shell source. Pure.

Whatever a container runs is written as one command, and read like any other; ports and volumes stay where they are.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from speclift.linter.dialect import Dialects
from speclift.linter.other_engines import engine_of_image

_KUBERNETES_NAME = re.compile(r"\$\((\w+)\)")
_COMPOSE_NAME = re.compile(r"\$\{[^{}]*\}|\$\w+")
NOTE = "this is what the container runs; ports, volumes and devices stay in the manifest"


def is_manifest(documents: Sequence[object]) -> bool:
    return any(
        isinstance(document, Mapping) and ("services" in document or "apiVersion" in document)
        for document in documents
    )


def manifest_commands(documents: Sequence[object], dialects: Dialects) -> list[str]:
    """One shell command for each container that says what it runs, or whose image is an engine's."""
    commands: list[str] = []
    for document in documents:
        if not isinstance(document, Mapping):
            continue
        services = document.get("services")
        if isinstance(services, Mapping):
            commands += [
                _compose_command(service, dialects)
                for service in services.values()
                if isinstance(service, Mapping)
            ]
        else:
            commands += [_pod_command(container, dialects) for container in _containers(document)]
    return [command for command in commands if command]


def _containers(value: object) -> Iterator[Mapping[str, object]]:
    """Of a Deployment, a Pod, a Job, a LeaderWorkerSet: wherever a list of containers stands."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key in ("containers", "initContainers") and isinstance(inner, list):
                yield from (container for container in inner if isinstance(container, Mapping))
            else:
                yield from _containers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _containers(inner)


def _pod_command(container: Mapping[str, object], dialects: Dialects) -> str:
    given = container.get("env")
    variables = {
        str(each["name"]): str(each["value"])
        for each in (given if isinstance(given, list) else [])
        if isinstance(each, Mapping) and "name" in each and "value" in each
    }

    def live(word: str) -> str:
        """$(NAME) is Kubernetes' own; a shell writes ${NAME}."""
        quoted = shlex.quote(word)
        if not _KUBERNETES_NAME.search(word):
            return quoted
        parts = _KUBERNETES_NAME.split(word)
        return '"' + "".join(
            f"${{{part}}}" if index % 2 else re.sub(r'(["\\\\$`])', r"\\\1", part)
            for index, part in enumerate(parts)
        ) + '"'  # fmt: skip

    words = [live(word) for word in (*_words(container.get("command")), *_words(container.get("args")))]
    return _command(variables, words, container, dialects, has_entry_point="command" in container)


def _compose_command(service: Mapping[str, object], dialects: Dialects) -> str:
    given = service.get("environment")
    pairs = given.items() if isinstance(given, Mapping) else _pairs(given)
    variables = {str(name): "" if value is None else str(value) for name, value in pairs}
    words = [source for key in ("entrypoint", "command") for source in _compose_sources(service.get(key))]
    return _command(variables, words, service, dialects, has_entry_point=bool(service.get("entrypoint")))


def _compose_sources(value: object) -> list[str]:
    """A text is split as a shell does; of a list each item is one word, in which $NAME is filled in."""
    if isinstance(value, str):
        return [value.replace("\\\n", " ").replace("\n", " ").replace("$$", "$")]
    return [_live_word(word) for word in _words(value)]


def _live_word(word: str) -> str:
    if not _COMPOSE_NAME.search(word):
        return shlex.quote(word)
    return '"' + re.sub(r'(["\\\\`])', r"\\\1", word) + '"'


def _pairs(given: object) -> Iterator[tuple[str, str]]:
    for each in _words(given):
        name, equals, value = each.partition("=")
        if equals:
            yield name, value


def _words(value: object) -> list[str]:
    if isinstance(value, list):
        return [str(each) for each in value if not isinstance(each, (list, Mapping))]
    return [str(value)] if isinstance(value, (str, int, float)) else []


def _command(
    variables: Mapping[str, str],
    words: Sequence[str],
    container: Mapping[str, object],
    dialects: Dialects,
    *,
    has_entry_point: bool,
) -> str:
    image = str(container.get("image", ""))
    starts: tuple[str, ...] = ()
    if not has_entry_point:
        dialect = next(
            (each for each in dialects.known if each.image is not None and each.image.search(image)), None
        )
        other = engine_of_image(image)
        if dialect is not None and not _starts_itself(words, dialect.image_starts):
            starts = dialect.image_starts
        elif other is not None:
            starts = other.programs[:1]
    if not words and not starts:
        return ""
    exports = [f"export {name}={_live_word(value)}\n" for name, value in variables.items()]
    return "".join([*exports, " ".join([*starts, *words])])


def _starts_itself(words: Sequence[str], program: Sequence[str]) -> bool:
    """Whether the command names the program again, as entry points of older images wanted."""
    return bool(words) and words[0].split()[:1] == list(program[:1])
