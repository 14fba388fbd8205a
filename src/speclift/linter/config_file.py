"""A config file of an engine, or JSON with the same keys: flat, with the speculative config nested. Pure.

YAML is read by PyYAML, as engines read it, with limits: a stranger's file may be deep, or small and many times itself.
This module imports PyYAML, so whoever may not meet a config imports it late.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NoReturn

import yaml

from speclift.core.errors import UsageError
from speclift.linter.dialect import Dialect, Dialects, NestedConfig
from speclift.linter.json_text import DEEPEST, parse_json
from speclift.linter.pasted import Form, Pasted, Setting

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
        """Of two that know as many keys, the one that keeps settings in a file is meant."""
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
    """Only the dict that the config flag takes was pasted."""
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
