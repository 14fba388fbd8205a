"""A vLLM command of any age as today's command line, Python call and YAML file. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from speclift.linter.findings import dotted
from speclift.linter.flag_rules import converted, shown
from speclift.linter.json_text import config_json, parse_json
from speclift.linter.pasted import Expression, Pasted, Setting, ShellExpression
from speclift.linter.rows import FlagKind, FlagRow
from speclift.linter.translation import Translation, shell_source, yaml_text
from speclift.linter.vllm_flags import FLAG_ROWS
from speclift.linter.vllm_judge import ENVIRONMENT, PYTHON_ONLY
from speclift.linter.vllm_keys import NEWEST
from speclift.linter.vllm_reading import CONFIG_FLAG, Reading, read_settings, row_of
from speclift.linter.vllm_server_flags import FRONT_END
from speclift.linter.vllm_translate_config import closest, translate_config
from speclift.linter.vllm_values import LOAD_FORMATS_GONE, QUANTISATIONS

# What today's parser makes of an old --task.
RUNNERS = {"auto": "auto", "generate": "generate", "embed": "pooling", "embedding": "pooling", "score": "pooling",
           "classify": "pooling", "reward": "pooling"}  # fmt: skip
# An image of one release, such as vllm/vllm-openai:v0.6.3.post1.
_PINNED = re.compile(r"(vllm-openai):v?\d[\w.-]*$")
# V0 settings whose loss changes nothing, so that a note would be noise.
SILENT = (
    "--use-v2-block-manager",
    "--disable-log-requests",
    "--num-lookahead-slots",
    "--speculative-disable-mqa-scorer",
)


def translate_vllm(pasted: Pasted) -> Translation:
    reading = read_settings(pasted)
    notes: list[str] = []
    flags = _flags(reading, notes)
    if reading.config:
        config, lost = translate_config(
            reading.config,
            tensor_parallel=reading.number("--tensor-parallel-size"),
            max_model_len=reading.number("--max-model-len"),
            is_from_flags=bool(reading.carried) and not reading.explicit,
        )
        flags[CONFIG_FLAG] = config
        notes += lost
    elif reading.opaque is not None:
        flags[CONFIG_FLAG] = reading.opaque
    if pasted.wrapper and not pasted.program and _PINNED.search(pasted.wrapper[-1]):
        notes.append(
            f"the image was pinned to {pasted.wrapper[-1].rpartition(':')[2]}; this is for {dotted(NEWEST)}"
        )
    notes += _untold(pasted, reading.config)
    model = flags.pop("--model", pasted.model)
    argv = _argv(pasted, model, flags)
    environment = [(name, value) for name, value in _own_environment(pasted) if name not in ENVIRONMENT]
    return Translation(
        argv=tuple(argv),
        source=shell_source(pasted, argv, environment),
        python=_python(model, flags),
        yaml=_yaml(model, flags),
        notes=tuple(dict.fromkeys(notes)),
    )


def _untold(pasted: Pasted, config: Mapping[str, object]) -> Iterable[str]:
    """Python that stands for a value, of which a command line and YAML know nothing."""
    named = [*((setting.spelled, setting.value) for setting in pasted.settings), *config.items()]
    for name, value in named:
        if isinstance(value, Expression) and not isinstance(value, ShellExpression):
            yield f"{name} is {value.text}, which only running the program would tell: put its value in"


def _own_environment(pasted: Pasted) -> Iterable[tuple[str, str]]:
    """Variables of the shell; those inside docker run stay where they are."""
    inside = [f"{name}={value}" for name, value in pasted.environment]
    return [pair for pair, word in zip(pasted.environment, inside, strict=True) if word not in pasted.wrapper]


def _flags(reading: Reading, notes: list[str]) -> dict[str, object]:
    """Flags that are no part of the speculative config, as today's parser takes them; True for a switch."""
    flags: dict[str, object] = {}
    for setting in reading.others:
        row = row_of(setting)
        if setting.name in PYTHON_ONLY and row is None:
            continue
        if row is None:
            notes.append(f"{setting.spelled} was left out: vLLM has no such flag")
        elif row.span.holds(NEWEST):
            _keep(setting, row, reading, flags, notes)
        else:
            _replace(setting, row, flags, notes)
    return flags


def _keep(
    setting: Setting, row: FlagRow, reading: Reading, flags: dict[str, object], notes: list[str]
) -> None:
    value = setting.value
    if re.fullmatch(r"-O\d", setting.spelled):
        flags["--optimization-level"] = int(setting.spelled[2:])
    elif setting.name == "--per-request-spec-decode-metrics" and not reading.is_speculative:
        notes.append(f"{setting.spelled} was left out: the server has no speculative config")
    elif setting.name == "--quantization" and isinstance(value, str) and _is_gone(value):
        notes.append(f"{setting.spelled} {value} has no equivalent; closest: {closest(value)}")
    elif setting.name == "--load-format" and shown(value) in LOAD_FORMATS_GONE:
        notes.append(f"{setting.spelled} {shown(value)} went with it; the default loads what is there")
    elif row.kind is FlagKind.SWITCH and "." not in setting.name:
        flags[setting.name] = converted(value, FlagKind.SWITCH) is True and not setting.is_off
    elif value is None and row.kind is not FlagKind.SWITCH:
        notes.append(f"{setting.spelled} was left out: no value follows it")
    else:
        flags[setting.name] = converted(value, row.kind)


def _is_gone(quantisation: str) -> bool:
    return quantisation in QUANTISATIONS and not QUANTISATIONS[quantisation].holds(NEWEST)


def _replace(setting: Setting, row: FlagRow, flags: dict[str, object], notes: list[str]) -> None:
    if row.name == "--task":
        flags["--runner"] = RUNNERS.get(shown(setting.value), "auto")
    elif row.name in ("--rope-scaling", "--rope-theta"):
        key = row.name.removeprefix("--").replace("-", "_")
        overrides = flags.setdefault("--hf-overrides", {})
        if isinstance(overrides, dict):
            overrides[key] = converted(setting.value, row.kind)
    elif row.renamed_to is not None:
        flags[row.renamed_to] = converted(setting.value, row.kind)
    elif row.replacement is not None:
        name, _, value = row.replacement.partition(" ")
        if name in FLAG_ROWS:
            flags[name] = value
    elif row.name not in SILENT:
        notes.append(f"{setting.spelled} was left out: {row.note or 'vLLM no longer has it'}")


# Forms


def _argv(pasted: Pasted, model: object, flags: Mapping[str, object]) -> list[str]:
    if pasted.wrapper and not pasted.program:  # a container whose entry point is the server
        head = [*_container(pasted.wrapper), *(["--model", shown(model)] if model is not None else [])]
    else:
        head = [*pasted.wrapper, "vllm", "serve", *([shown(model)] if model is not None else [])]
    words = (word for name, value in flags.items() for word in _words(name, value))
    return [*head, *words, *pasted.carried]


def _container(wrapper: Sequence[str]) -> list[str]:
    """docker run without variables that nothing reads, and with the image of the release that was translated to."""
    words: list[str] = []
    for word in wrapper:
        if words and words[-1] in ("-e", "--env") and word.partition("=")[0] in ENVIRONMENT:
            words.pop()
        else:
            words.append(word)
    *before, image = words
    return [*before, _PINNED.sub(rf"\1:v{dotted(NEWEST)}", image)]


def _words(name: str, value: object) -> list[str]:
    if value is True:
        return [name]
    if value is False:
        return [f"--no-{name.removeprefix('--')}"]
    if isinstance(value, list) and all(not isinstance(each, (list, dict)) for each in value):
        return [name, *(shown(each) for each in value)]
    if isinstance(value, (list, Mapping)):
        return [name, config_json(value, separators=(",", ":"))]
    return [name, str(value)]


def _python(model: object, flags: Mapping[str, object]) -> str:
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


def _yaml(model: object, flags: Mapping[str, object]) -> str:
    document: dict[str, object] = {} if model is None else {"model": _plain(model)}
    for name, value in flags.items():
        head, dot, path = name.removeprefix("--").partition(".")
        if dot:
            inner = document.setdefault(head, {})
            if isinstance(inner, dict):
                inner[path] = _plain(value)
        else:
            document[head] = _plain(_number(value))
    return yaml_text(document)


def _plain(value: object) -> object:
    """An expression has no YAML; its source stands in for it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.text if isinstance(value, Expression) else value
