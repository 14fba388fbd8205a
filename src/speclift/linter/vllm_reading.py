"""The speculative config that a vLLM command amounts to, whichever flags it was spread over. Pure."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from speclift.linter.findings import LintFinding, Status
from speclift.linter.json_text import DEEPEST, parse_json
from speclift.linter.pasted import Expression, Pasted, Setting
from speclift.linter.row_rules import finding, told
from speclift.linter.rows import Row
from speclift.linter.vllm_flags import FLAGS

CONFIG_FLAG = "--speculative-config"


@dataclass(slots=True)
class VllmReading:
    """`explicit` holds the keys of --speculative-config, `carried` those that flags stand for, with the flag."""

    pasted: Pasted
    explicit: dict[str, object] = field(default_factory=dict)
    carried: dict[str, tuple[Setting, object]] = field(default_factory=dict)
    others: list[Setting] = field(default_factory=list)
    faults: list[LintFinding] = field(default_factory=list)
    opaque: object = None  # the config where only running the program, or the shell, would tell it

    @property
    def config(self) -> dict[str, object]:
        return {**{key: value for key, (_, value) in self.carried.items()}, **self.explicit}

    @property
    def is_speculative(self) -> bool:
        return bool(self.config) or self.opaque is not None

    def number(self, *names: str) -> int | None:
        """A flag's value as a whole number; None where it is not given or not one."""
        value = self.pasted.last(*names)
        try:
            return int(str(value)) if value is not None else None
        except ValueError:
            return None


def row_of(setting: Setting) -> Row | None:
    return FLAGS.find(setting.name.partition(".")[0])


def read_settings(pasted: Pasted) -> VllmReading:
    reading = VllmReading(pasted=pasted)
    for setting in pasted.settings:
        row = row_of(setting)
        head, dot, path = setting.name.partition(".")
        if head == CONFIG_FLAG:
            if dot and path.count(".") > DEEPEST:
                said = f"is a path of more than {DEEPEST} keys"
                reading.faults.append(finding(setting, Status.CONFLICT, said))
            elif dot:
                _put(reading.explicit, path, _loose(setting.value))
            else:
                _read_config(setting, reading)
        elif row is not None and row.key is not None:
            _carry(setting, row, reading)
        else:
            reading.others.append(setting)
    for key, (setting, _) in reading.carried.items():
        if key not in reading.explicit:
            continue
        said = f"{key} is given twice, here and in {CONFIG_FLAG}"
        reading.faults.append(finding(setting, Status.CONFLICT, said, source="vllm.engine.arg_utils"))
    return reading


def _carry(setting: Setting, row: Row, reading: VllmReading) -> None:
    value = told(setting, row.kind)
    if value is None or value is False:
        return  # LLM(speculative_model=None) asks for nothing
    reading.carried[str(row.key)] = (setting, value)


def _read_config(setting: Setting, reading: VllmReading) -> None:
    value, fault = setting.value, None
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError as error:
            fault = str(error)
    if isinstance(value, Expression) or (setting.is_opaque and not isinstance(value, dict)):
        reading.opaque = setting.value
        teller = "running the program" if isinstance(value, Expression) else "a shell"
        said = f"only {teller} would tell what is in it"
        reading.faults.append(finding(setting, Status.UNREAD, said))
        return
    if fault is not None:
        value = _python_dict(setting, fault, reading)
    if isinstance(value, Mapping):
        for key, each in value.items():
            reading.explicit[str(key).replace("-", "_")] = each
    elif value is not None:
        said = f"takes a JSON object, saw {value!r}"
        reading.faults.append(finding(setting, Status.CONFLICT, said))


def _python_dict(setting: Setting, fault: str, reading: VllmReading) -> object:
    """What is no JSON may be a dict as Python writes it: refused by vLLM, and clear enough to be judged."""
    try:
        value: object = ast.literal_eval(str(setting.value))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        reading.faults.append(finding(setting, Status.CONFLICT, f"is no JSON: {fault}"))
        return None
    said = "is a Python dict, and vLLM reads JSON: double quotes, true, null"
    today = f"{CONFIG_FLAG} '{json.dumps(value, default=str)}'"
    reading.faults.append(finding(setting, Status.CONFLICT, said, replacement=today))
    return value


def _loose(value: object) -> object:
    """After a dot vLLM takes JSON where it reads as JSON, and text where it does not."""
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value)
    except ValueError:
        return value


def _put(config: dict[str, object], path: str, value: object) -> None:
    head, dot, rest = path.partition(".")
    key = head.replace("-", "_")
    if not dot:
        config[key] = value
        return
    inner = config.get(key)
    nested = dict(inner) if isinstance(inner, Mapping) else {}
    _put(nested, rest, value)
    config[key] = nested
