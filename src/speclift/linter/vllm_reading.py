"""The speculative config that a vLLM command amounts to, whichever flags it was spread over. Pure."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from speclift.linter.findings import LintFinding, Status
from speclift.linter.flag_rules import finding, told
from speclift.linter.json_text import DEEPEST, parse_json
from speclift.linter.pasted import Expression, Pasted, Setting
from speclift.linter.rows import FlagRow
from speclift.linter.vllm_flags import FLAG_ROWS

CONFIG_FLAG = "--speculative-config"


@dataclass(slots=True)
class Reading:
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


def row_of(setting: Setting) -> FlagRow | None:
    return FLAG_ROWS.get(setting.name.partition(".")[0])


def read_settings(pasted: Pasted) -> Reading:
    reading = Reading(pasted=pasted)
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
    for key in reading.explicit.keys() & reading.carried.keys():
        setting = reading.carried[key][0]
        said = f"{key} is given twice, here and in {CONFIG_FLAG}"
        reading.faults.append(finding(setting, Status.CONFLICT, said, source="vllm.engine.arg_utils"))
    return reading


def _carry(setting: Setting, row: FlagRow, reading: Reading) -> None:
    value = told(setting, row.kind)
    if value is None or value is False:
        return  # LLM(speculative_model=None) asks for nothing
    reading.carried[str(row.key)] = (setting, value)


def _read_config(setting: Setting, reading: Reading) -> None:
    value = setting.value
    if isinstance(value, Expression) or (setting.is_opaque and not _is_json(value)):
        reading.opaque = value
        said = f"only {'running the program' if isinstance(value, Expression) else 'a shell'} would tell what is in it"
        reading.faults.append(finding(setting, Status.UNREAD, said))
        return
    if isinstance(value, str):
        value = _parsed(setting, value, reading)
    if isinstance(value, Mapping):
        for key, each in value.items():
            reading.explicit[str(key).replace("-", "_")] = each
    elif value is not None:
        said = f"takes a JSON object, saw {value!r}"
        reading.faults.append(finding(setting, Status.CONFLICT, said))


def _is_json(value: object) -> bool:
    try:
        return isinstance(parse_json(str(value)), dict)
    except ValueError:
        return False


def _parsed(setting: Setting, text: str, reading: Reading) -> object:
    try:
        return parse_json(text)
    except ValueError as error:
        fault = str(error)
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        said = f"is no JSON: {fault}"
        reading.faults.append(finding(setting, Status.CONFLICT, said))
        return None
    said = "is a Python dict, and vLLM reads JSON: double quotes, true, null"
    reading.faults.append(
        finding(
            setting, Status.CONFLICT, said, replacement=f"{CONFIG_FLAG} '{json.dumps(value, default=str)}'"
        )
    )
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
