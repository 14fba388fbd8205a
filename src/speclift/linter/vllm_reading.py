"""The speculative config that a vLLM command amounts to, whichever flags it was spread over. Pure."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from speclift.linter.findings import LintFinding, Status
from speclift.linter.json_text import DEEPEST, parse_json
from speclift.linter.pasted import Expression, Pasted, Setting
from speclift.linter.row_rules import finding, told
from speclift.linter.rows import Row
from speclift.linter.vllm_flags import FLAGS

CONFIG_FLAG = "--speculative-config"


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmReading:
    """`explicit` holds the keys of --speculative-config, `carried` those that flags stand for, with the flag."""

    pasted: Pasted
    explicit: Mapping[str, object]
    carried: Mapping[str, tuple[Setting, object]]
    others: Sequence[Setting]
    faults: Sequence[LintFinding]
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
    explicit: dict[str, object] = {}
    carried: dict[str, tuple[Setting, object]] = {}
    others: list[Setting] = []
    faults: list[LintFinding] = []
    opaque: object = None
    for setting in pasted.settings:
        row = row_of(setting)
        if row is not None and row.name == CONFIG_FLAG:
            fault = _read_config(setting, explicit)
            if fault is not None:
                faults.append(fault)
                opaque = setting.value if fault.status is Status.UNREAD else opaque
        elif row is None or row.key is None:
            others.append(setting)
        else:
            value = told(setting, row.kind)
            if value is not None and value is not False:  # LLM(speculative_model=None) asks for nothing
                carried[row.key] = (setting, value)
    for key, (setting, _) in carried.items():
        if key in explicit:
            said = f"{key} is given twice, here and in {CONFIG_FLAG}"
            faults.append(finding(setting, Status.CONFLICT, said, source="vllm.engine.arg_utils"))
    return VllmReading(
        pasted=pasted, explicit=explicit, carried=carried, others=others, faults=faults, opaque=opaque
    )


def _read_config(setting: Setting, config: dict[str, object]) -> LintFinding | None:
    """Adds what the flag says to the config; what is wrong with it, or None."""
    _, dot, path = setting.name.partition(".")
    if path.count(".") > DEEPEST:
        return finding(setting, Status.CONFLICT, f"is a path of more than {DEEPEST} keys")
    if dot:
        _put(config, path, _loose(setting.value))
        return None
    value, fault = setting.value, None
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError as error:
            fault = finding(setting, Status.CONFLICT, f"is no JSON: {error}")
    if isinstance(value, Expression) or (setting.is_opaque and not isinstance(value, dict)):
        teller = "running the program" if isinstance(value, Expression) else "a shell"
        return finding(setting, Status.UNREAD, f"only {teller} would tell what is in it")
    if fault is not None:
        value = _python_literal(str(setting.value))
        if value is None:
            return fault
        said = "is a Python dict, and vLLM reads JSON: double quotes, true, null"
        today = f"{CONFIG_FLAG} '{json.dumps(value, default=str)}'"
        fault = finding(setting, Status.CONFLICT, said, replacement=today)
    if isinstance(value, Mapping):
        config.update({str(key).replace("-", "_"): each for key, each in value.items()})
    elif value is not None:
        return finding(setting, Status.CONFLICT, f"takes a JSON object, saw {value!r}")
    return fault


def _python_literal(text: str) -> object:
    """What is no JSON may be a dict as Python writes it: refused by vLLM, and clear enough to be judged."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


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
