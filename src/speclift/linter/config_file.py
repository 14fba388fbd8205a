"""YAML and JSON that an engine reads, and the containers of a manifest as shell source. Pure; loads PyYAML."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn

import yaml

from speclift.core.errors import UsageError
from speclift.linter.dialect import Dialect, Dialects, NestedConfig, engine_of_image
from speclift.linter.pasted import DEEPEST, Form, Pasted, Setting, parse_json

# Of all documents together, with every alias counted as what it stands for; a serving config has some dozen.
VALUES_MAX = 20_000
DIGITS_MAX = 1_000  # Python refuses to print 4,300; a hexadecimal digit is more than a decimal one
SHOWN_MAX = 80
_TAG = "tag:yaml.org,2002:"
_COLLECTIONS = (f"{_TAG}map", f"{_TAG}seq")
# A date has no meaning to an engine's flag, which takes it for the text it was written as; so do the odd two.
_TEXTS = tuple(f"{_TAG}{name}" for name in ("str", "timestamp", "merge", "value"))
_NUMBERS = (f"{_TAG}int", f"{_TAG}float")


def read_config(text: str, dialects: Dialects) -> Pasted:
    document = _only_document(text)
    if not isinstance(document, Mapping):
        raise UsageError("this config is not a map of settings", hint="such as `tensor-parallel-size: 2`")
    for dialect in dialects.in_question:
        config = dialect.config
        if config is not None and _is_nested_alone(document, config):
            setting = Setting(name=config.flag, spelled=config.flag.removeprefix("--"), value=document)
            return Pasted(engine=dialect.engine, form=Form.CONFIG, settings=(setting,))
    flags = {key: f"--{key.lstrip('-').replace('_', '-')}" for key in document}

    def fit(dialect: Dialect) -> tuple[int, bool]:
        """How many keys it knows; of two that know as many, one that reads such a file is meant."""
        return sum(flag in dialect.flags for flag in flags.values()), dialect.config is not None

    dialect = max(dialects.in_question, key=fit)
    if dialects.asked is None and not any(flag in dialect.flags for flag in flags.values()):
        few = ", ".join(key[:40] for key in list(document)[:5])
        raise UsageError(
            "no engine knows a key of this config",
            hint=f"saw {few}; choose the engine with --engine {' or '.join(dialects.engines)}",
        )
    settings = tuple(_setting(key, flag, document[key], dialect) for key, flag in flags.items())
    return Pasted(engine=dialect.engine, form=Form.CONFIG, settings=settings)


def _setting(key: str, flag: str, value: object, dialect: Dialect) -> Setting:
    row = dialect.flags.find(flag)
    if row is not None:
        return Setting(name=row.name, spelled=key, value=value)
    name, row, is_off = dialect.find_row(flag, None)
    return Setting(name=name if is_off else flag, spelled=key, value=value, is_off=is_off)


def _is_nested_alone(document: Mapping[str, object], config: NestedConfig) -> bool:
    """True if only the dict that the config flag takes was pasted."""
    keys = {key.replace("-", "_") for key in document}
    return all(key in config.keys for key in keys) and bool(keys & config.telling)


def _only_document(text: str) -> object:
    documents = [(line, value) for line, value in read_yaml(text) if value is not None]
    maps = (value for _, value in documents if isinstance(value, Mapping))
    if any("services" in each or "apiVersion" in each for each in maps):
        raise UsageError(
            "this is a container manifest, and no config of an engine", hint="paste the command that it runs"
        )
    if not documents:
        raise UsageError("this config is empty")
    if len(documents) > 1:
        raise UsageError(
            f"this YAML has {len(documents)} documents, an engine reads one",
            hint=f"the second begins in line {documents[1][0]}",
        )
    return documents[0][1]


def read_yaml(text: str) -> list[tuple[int, object]]:
    """Its documents as maps, lists and scalars, each with the line it begins in; JSON is YAML too."""
    try:
        return [(1, parse_json(text))]
    except ValueError:
        pass
    try:
        return list(_Documents(text).read())
    except yaml.reader.ReaderError as error:
        _refuse(text, text.count("\n", 0, error.position), "a character that YAML does not allow")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        _refuse(text, 0 if mark is None else mark.line, error.problem or error.context or "it is not YAML")


def _refuse(text: str, line: int, why: str) -> NoReturn:
    lines = text.splitlines()
    seen = lines[line].strip() if line < len(lines) else ""
    raise UsageError(
        f"line {line + 1} of this YAML cannot be read: {why[: 2 * SHOWN_MAX]}",
        hint=f"saw {seen[:SHOWN_MAX]!r}" if seen else "it ends too early",
    ) from None


class _Documents(yaml.SafeLoader):
    """Nodes of a stranger's text, counted as they are composed, and again as values: an alias is a node many times."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._composed = self._valued = self._depth = 0

    def read(self) -> Iterator[tuple[int, object]]:
        while self.check_node():
            node = self.get_node()
            if node is not None:
                yield node.start_mark.line + 1, self._value(node, depth=0)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._composed += 1
        mark: yaml.Mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        self._require_little(mark, self._composed, self._depth)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def _require_little(self, mark: yaml.Mark, values: int, depth: int) -> None:
        if depth > DEEPEST:
            raise _fault(mark, f"it is nested more than {DEEPEST} levels deep")
        if values > VALUES_MAX:
            raise _fault(mark, f"there are more than {VALUES_MAX:,} values up to here")

    def _value(self, node: yaml.Node, *, depth: int) -> object:
        self._valued += 1
        self._require_little(node.start_mark, self._valued, depth)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if node.tag not in _COLLECTIONS:
            raise _fault(node.start_mark, f"the tag {node.tag!r} is not read here")
        if isinstance(node, yaml.MappingNode):
            return self._map(node, depth=depth)
        return [self._value(each, depth=depth + 1) for each in node.value]

    def _map(self, node: yaml.MappingNode, *, depth: int) -> dict[str, object]:
        own: dict[str, object] = {}
        merged: dict[str, object] = {}
        for key, each in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _fault(key.start_mark, "a key is a list or a map")
            value = self._value(each, depth=depth + 1)
            if key.tag == f"{_TAG}merge":
                for other in value if isinstance(value, list) else [value]:
                    if not isinstance(other, dict):
                        raise _fault(each.start_mark, "<< takes a map, or a list of maps")
                    for name, content in other.items():
                        merged.setdefault(name, content)
            elif key.value in own:
                raise _fault(key.start_mark, f"{key.value[:SHOWN_MAX]!r} is given twice")
            else:
                own[key.value] = value
        return {**merged, **own}

    def _scalar(self, node: yaml.ScalarNode) -> object:
        if node.tag in _TEXTS:
            return node.value
        if node.tag in _NUMBERS and len(node.value) > DIGITS_MAX:
            raise _fault(node.start_mark, f"a number of {len(node.value):,} digits")
        try:
            return self.construct_object(node)
        except (ValueError, LookupError, ArithmeticError):
            kind = node.tag.removeprefix(_TAG)
            raise _fault(node.start_mark, f"{node.value[:SHOWN_MAX]!r} is no {kind}") from None


def _fault(mark: yaml.Mark, why: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=why, problem_mark=mark)


# Compose files and Kubernetes manifests. Whatever a container runs is written as one command, and read like any other


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
    """The containers of a Deployment, a Pod, a Job, a LeaderWorkerSet, wherever they are listed."""
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
    """True if the command names the program again, as entry points of older images wanted."""
    return bool(words) and words[0].split()[:1] == list(program[:1])
