"""One vLLM server in the forms that users paste: words of a command, a call in Python, a file for --config. Pure.

Flags come by name with what stands behind them: True for a switch, False for its --no- form.
"""

from __future__ import annotations

from collections.abc import Mapping

from speclift.engines.vllm.dialect.tables import FRONT_END
from speclift.linter.pasted import Expression, config_json, parse_json
from speclift.linter.row_rules import shown, yaml_text


def flag_words(name: str, value: object) -> list[str]:
    if value is True:
        return [name]
    if value is False:
        return [f"--no-{name.removeprefix('--')}"]
    if isinstance(value, list) and all(not isinstance(each, (list, dict)) for each in value):
        return [name, *(shown(each) for each in value)]
    if isinstance(value, (list, Mapping)):
        return [name, config_json(value, separators=(",", ":"))]
    return [name, str(value)]


def python_engine(model: object, flags: Mapping[str, object]) -> str:
    """The same engine inside a Python program, which has no use for flags of the HTTP server."""
    arguments = [] if model is None else [("model", model)]
    nested: dict[str, dict[str, object]] = {}
    for name, value in flags.items():
        head, _, path = name.partition(".")
        if head in FRONT_END:
            continue
        key = head.removeprefix("--").replace("-", "_")
        if path:
            nested.setdefault(key, {})[path] = value
            continue
        arguments.append((key, _number(value)))
    arguments += list(nested.items())
    body = "".join(f"    {key}={_source(value)},\n" for key, value in arguments)
    return f"from vllm import LLM\n\nllm = LLM(\n{body})\n"


def yaml_config(model: object, flags: Mapping[str, object], *, nests: bool) -> str:
    """The same server as a file for `vllm serve --config FILE`. `nests`: it reads maps there, not only their JSON."""
    document: dict[str, object] = {} if model is None else {"model": _plain(model)}
    for flag, value in flags.items():
        name, dot, path = flag.removeprefix("--").partition(".")
        if dot:
            inner = document.setdefault(name, {})
            if isinstance(inner, dict):
                inner[path] = _plain(value)
        elif value is False:
            # A key that is false adds no word to the command line (load_config_file of vLLM's parser).
            document[f"no-{name}"] = True
        else:
            document[name] = _plain(_number(value)) if nests else _flat(value)
    return yaml_text(document)


def _flat(value: object) -> object:
    plain = _plain(_number(value))
    if not isinstance(plain, (Mapping, list)):
        return plain
    return value if isinstance(value, str) else config_json(plain)


def _number(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        parsed = parse_json(value)
    except ValueError:
        return value
    return value if isinstance(parsed, str) else parsed


def _source(value: object) -> str:
    if isinstance(value, Mapping):
        inner = "".join(f"        {key!r}: {each!r},\n" for key, each in value.items())
        return f"{{\n{inner}    }}"
    return repr(value)


def _plain(value: object) -> object:
    """An expression has no YAML; its source stands in for it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.text if isinstance(value, Expression) else value
