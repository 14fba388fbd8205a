"""What a vLLM command means: read, judged by a release, and taken apart into what speclift measures. Pure."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from speclift.core.errors import UsageError
from speclift.core.speculation import DraftModel, Extra, Head, NGram, Off, Speculation, Suffix
from speclift.engines.vllm.dialect.config_rules import PREFIX, K, check_speculative_config, method_of
from speclift.engines.vllm.dialect.tables import (
    CONFIG_FLAG,
    CONFIG_SINCE,
    FLAGS,
    LOAD_FORMATS_GONE,
    NEWEST,
    OLD_FLAGS_GONE,
    QUANTISATIONS,
    V0_GONE,
    VARIABLES,
)
from speclift.linter.pasted import DEEPEST, Expression, Form, Pasted, Setting, TakenApart, parse_json
from speclift.linter.row_rules import fault, finding, judge_flag, shown, told
from speclift.linter.rows import Life, LintFinding, NameTable, Release, Row, Status

# Keyword arguments of LLM(...) that are no flag of the server.
PYTHON_ONLY = ("--disable-log-stats", "--log-stats", "--usage-context", "--engine-args")
# HTTP 400 as soon as the server has a speculative config (0.32; vLLM issue 42744).
REFUSED_SAMPLING = ("--min-p", "--logit-bias")


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmReading:
    """`explicit` holds the keys of --speculative-config, `carried` those that flags stand for, with the flag."""

    pasted: Pasted
    explicit: Mapping[str, object]
    carried: Mapping[str, tuple[Setting, object]]
    others: Sequence[Setting]
    faults: Sequence[LintFinding]
    is_cpu: bool = False
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


def read_settings(pasted: Pasted, *, version: str = "") -> VllmReading:
    explicit: dict[str, object] = {}
    carried: dict[str, tuple[Setting, object]] = {}
    others: list[Setting] = []
    faults: list[LintFinding] = []
    opaque: object = None
    for setting in pasted.settings:
        row = row_of(setting)
        if row is not None and row.name == CONFIG_FLAG:
            wrong = _read_config(setting, explicit)
            if wrong is not None:
                faults.append(wrong)
                opaque = setting.value if wrong.status is Status.UNREAD else opaque
        elif row is None or row.key is None:
            others.append(setting)
        else:
            value = told(setting, row.kind)
            if value is not None and value is not False:  # LLM(speculative_model=None) asks for nothing
                carried[row.key] = (setting, value)
    for key, (setting, _) in carried.items():
        if key in explicit:
            said = f"{key} is given twice: here and in {CONFIG_FLAG}"
            faults.append(finding(setting, Status.CONFLICT, said, source="vllm.engine.arg_utils"))
    return VllmReading(
        pasted=pasted,
        explicit=explicit,
        carried=carried,
        others=others,
        faults=faults,
        opaque=opaque,
        is_cpu="cpu" in version,
    )


def _read_config(setting: Setting, config: dict[str, object]) -> LintFinding | None:
    """Adds what the flag says to the config; what is wrong with it, or None."""
    _, dot, path = setting.name.partition(".")
    if path.count(".") > DEEPEST:
        return finding(setting, Status.CONFLICT, f"is a path of more than {DEEPEST} keys")
    if dot:
        _put(config, path, _loose(setting.value))
        return None
    value, wrong = _object_in(setting)
    if isinstance(value, Mapping):
        config.update({str(key).replace("-", "_"): each for key, each in value.items()})
    elif wrong is None and value is not None:
        return finding(setting, Status.CONFLICT, f"takes a JSON object, saw {value!r}")
    return wrong


def _object_in(setting: Setting) -> tuple[object, LintFinding | None]:
    """The config as it can be judged, and what is wrong with how it is written."""
    value, wrong = setting.value, None
    is_written_otherwise = False
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError as error:
            wrong = finding(setting, Status.CONFLICT, f"is not JSON: {error}")
            is_written_otherwise = isinstance(error, json.JSONDecodeError)
    if isinstance(value, Expression) or (setting.is_opaque and not isinstance(value, dict)):
        when = "when the program runs" if isinstance(value, Expression) else "in a shell"
        return None, finding(setting, Status.UNREAD, f"its value is known only {when}")
    if wrong is None:
        return value, None
    value = _python_literal(str(setting.value)) if is_written_otherwise else None
    if value is None:
        return None, wrong
    said = "is a Python dict, but vLLM reads JSON: use double quotes, true, null"
    today = f"{CONFIG_FLAG} '{json.dumps(value, default=str)}'"
    return value, finding(setting, Status.CONFLICT, said, replacement=today)


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


def _on_flags(reading: VllmReading, release: Release) -> Iterator[LintFinding]:
    for setting in reading.pasted.settings:
        if not (reading.pasted.form is Form.PYTHON and setting.name in PYTHON_ONLY):
            yield judge_flag(setting, row_of(setting), FLAGS, release)


def _on_reading(reading: VllmReading, _release: Release) -> Sequence[LintFinding]:
    return reading.faults


def _on_repeats(reading: VllmReading, _release: Release) -> Iterator[LintFinding]:
    """What is given twice: the last one counts, and the others are nobody's."""
    pasted = reading.pasted
    by_name: dict[str, list[Setting]] = {}
    for setting in pasted.settings:
        by_name.setdefault(setting.name, []).append(setting)
    for settings in by_name.values():
        said = [f"--no-{each.name[2:]}" if each.is_off else shown(each.value) for each in settings]
        if len(set(said)) > 1:
            message = f"is given {len(said)} times, and only the last counts: {', '.join(said)}"
            yield finding(settings[-1], Status.CONFLICT, message, source="argparse")
    named = by_name.get("--model")
    if named and pasted.model is not None:
        message = f"the model is given twice: {pasted.model} by its place, {shown(named[-1].value)} here"
        yield finding(named[-1], Status.CONFLICT, message, source="vllm.entrypoints.cli.serve")


def _on_config(reading: VllmReading, release: Release) -> Iterator[LintFinding]:
    """Findings on the config as a whole; those on a key that a flag carried speak of that flag."""
    # Where the release has no such flag, that says it all.
    if not reading.config or (reading.explicit and release < CONFIG_SINCE):
        return
    for found in check_speculative_config(
        reading.config,
        release=max(release, CONFIG_SINCE),
        is_cpu=reading.is_cpu or str(reading.pasted.last("--device")) == "cpu",
        tensor_parallel=reading.number("--tensor-parallel-size"),
        data_parallel=reading.number("--data-parallel-size"),
        max_model_len=reading.number("--max-model-len"),
        has_async_scheduling=_asked_for_async(reading),
    ):
        key = found.flag.removeprefix(PREFIX)
        if key in reading.explicit:
            yield found
        elif key not in reading.carried:
            yield replace(found, flag=_flag_for(key, release) or found.flag)
        elif found.status in (Status.CONFLICT, Status.RISKY):
            yield replace(found, flag=reading.carried[key][0].spelled)


def _asked_for_async(reading: VllmReading) -> bool | None:
    settings = [each for each in reading.pasted.settings if each.name == "--async-scheduling"]
    if not settings:
        return None
    return not settings[-1].is_off and settings[-1].value not in (False, "false", "False")


def _flag_for(key: str, release: Release) -> str | None:
    """Where a release without speculative configs would look for a key that is missing."""
    if release >= OLD_FLAGS_GONE:
        return None
    return next((row.name for row in FLAGS if row.key == key and row.holds(release)), None)


def _on_old_acceptance(reading: VllmReading, release: Release) -> Iterator[LintFinding]:
    """Where typical acceptance still is, it is lossy."""
    if reading.config.get("acceptance_method") != "typical_acceptance_sampler" or release >= V0_GONE:
        return
    flag = reading.carried["acceptance_method"][0].spelled if "acceptance_method" in reading.carried else ""
    if flag and release >= OLD_FLAGS_GONE:
        return
    yield LintFinding(
        flag=flag or f"{PREFIX}acceptance_method",
        status=Status.RISKY,
        message="lossy: typical acceptance keeps tokens that the target would reject",
        source="vllm.model_executor.layers.typical_acceptance_sampler",
    )


def _on_values(reading: VllmReading, release: Release) -> Iterator[LintFinding]:
    """Names that came and went."""
    for setting in reading.others:
        if setting.name == "--quantization":
            yield from _on_quantisation(setting, release)
        elif setting.name == "--load-format":
            yield from _on_name(setting, shown(setting.value), LOAD_FORMATS_GONE, release)
    if "quantization" in reading.config:
        carried = reading.carried.get("quantization")
        flag = carried[0].spelled if carried else f"{PREFIX}quantization"
        setting = Setting(name=flag, spelled=flag, value=reading.config["quantization"])
        yield from _on_quantisation(setting, release)


def _on_quantisation(setting: Setting, release: Release) -> Iterator[LintFinding]:
    value = setting.value
    if not isinstance(value, str) or "$" in value:
        return
    if value in QUANTISATIONS:
        yield from _on_name(setting, value, QUANTISATIONS, release)
    else:
        said = f"vLLM has no quantisation {value!r}; a plug-in may add it"
        yield finding(setting, Status.RISKY, said, source=QUANTISATIONS.source)


def _on_name(setting: Setting, name: str, table: NameTable, release: Release) -> Iterator[LintFinding]:
    row = table.find(name)
    found = fault(setting, row, table, release) if row is not None else None
    if found is not None:
        yield replace(found, message=f"{name} {found.message}")


def _on_rest(reading: VllmReading, _release: Release) -> Iterator[LintFinding]:
    for setting in reading.others:
        if setting.name == "--per-request-spec-decode-metrics" and not reading.is_speculative:
            said = "vLLM rejects it without a speculative config"
            yield finding(setting, Status.CONFLICT, said, source="vllm.config.vllm")
        if not reading.is_speculative:
            continue
        if setting.name == "--max-model-len" and shown(setting.value) in ("auto", "-1"):
            said = "vLLM reduces the context to what fits, and a draft uses memory: the two servers differ in context"
            yield finding(setting, Status.RISKY, said, source="vllm.engine.arg_utils")
        if setting.name == "--seed" and setting.value not in (None, "0", 0):
            said = (
                "above temperature 0 the same seed gives different text with speculation:"
                " compare distributions, not texts"
            )
            yield finding(setting, Status.RISKY, said, source="vllm.v1.sample.rejection_sampler")


def _on_environment(reading: VllmReading, release: Release) -> Iterator[LintFinding]:
    for name, value in reading.pasted.environment:
        row = VARIABLES.find(name)
        if row is not None and row.life(release) is Life.GONE:
            yield judge_flag(Setting(name=name, spelled=name, value=value), row, VARIABLES, release)


def _on_sampling(reading: VllmReading, _release: Release) -> Iterator[LintFinding]:
    if not reading.is_speculative:
        return
    for setting in reading.pasted.sampling:
        if setting.name in REFUSED_SAMPLING and setting.value not in (None, 0, 0.0, {}):
            said = "a server with a speculative config rejects requests with it"
            yield finding(setting, Status.CONFLICT, said, source="vLLM issue 42744")
        elif setting.name == "--seed" and setting.value is not None:
            said = "above temperature 0 the same seed gives different text with speculation"
            yield finding(setting, Status.RISKY, said, source="vllm.v1.sample.rejection_sampler")


RULES = (
    *(_on_flags, _on_reading, _on_repeats, _on_config, _on_old_acceptance),
    *(_on_values, _on_rest, _on_environment, _on_sampling),
)


# A command of today taken apart: what it drafts with, and what it says of the server


METRICS_FLAG = "--per-request-spec-decode-metrics"
# A server without speculation refuses the second one (config/vllm.py, 0.32).
SPECULATIVE = frozenset({CONFIG_FLAG, METRICS_FLAG})
# What vLLM looks up where nothing is said (config/speculative.py, 0.32).
LOOKUP_DEFAULT = 5
SUFFIX_DEPTH = 24
HEADS = ("eagle", "eagle3", "mtp", "medusa", "dflash", "dspark", "custom_class")

# Flags that say what a setting of ours says.
WHOLE_NUMBERS = {
    "context_tokens": "--max-model-len",
    "tp": "--tensor-parallel-size",
    "pp": "--pipeline-parallel-size",
    "max_num_seqs": "--max-num-seqs",
    "token_budget": "--max-num-batched-tokens",
}
TEXTS = {"target_quant": "--quantization", "kv_type_k": "--kv-cache-dtype", "kv_type_v": "--kv-cache-dtype"}


def take_apart_vllm(pasted: Pasted) -> TakenApart:
    reading = read_settings(pasted)
    speculation = speculation_of(reading.config) if reading.is_speculative else Off()
    return TakenApart(
        model=pasted.model or _text(pasted.last("--model")),
        speculation=speculation,
        settings=_settings(reading),
        utilisation=_share(pasted.last("--gpu-memory-utilization")),
    )


def speculation_of(config: Mapping[str, object]) -> Speculation:
    """As a value; what only vLLM has a name for travels with it."""
    left = {name: value for name, value in config.items() if value is not None}
    method = method_of(left, NEWEST)
    left.pop("method", None)
    if left.get("rejection_sample_method") == "synthetic":
        raise UsageError(
            "this line forces acceptance, so its text is garbage", hint="remove the synthetic rates"
        )
    model = left.pop("model", None)
    k = left.pop(K, None)
    match method:
        case "ngram" | "ngram_gpu":
            most, least = left.pop("prompt_lookup_max", None), left.pop("prompt_lookup_min", None)
            n = _whole(most, _whole(least, LOOKUP_DEFAULT))
            return NGram(
                variant="simple" if method == "ngram" else "gpu",
                k=_need_k(k, method),
                n=n,
                n_min=_whole(least, n),
                extra=_extra(left),
            )
        case "suffix":
            depth = _whole(left.get("suffix_decoding_max_tree_depth"), SUFFIX_DEPTH)
            return Suffix(k=_whole(k, depth), extra=_extra(left))
        case "draft_model" if isinstance(model, str):
            sampling = left.pop("draft_sample_method", "greedy")
            cache = left.pop("kv_cache_dtype", None)
            return DraftModel(
                model=model,
                k=_need_k(k, method),
                sampling="probabilistic" if sampling == "probabilistic" else "greedy",
                kv_type_k=_text(cache),
                kv_type_v=_text(cache),
                extra=_extra(left),
            )
        case kind if kind in HEADS:
            return Head(kind=kind, k=_need_k(k, method), model=_text(model), extra=_extra(left))
    raise UsageError(
        f"speclift cannot launch speculation by {method} as an arm of its own",
        hint="start both servers yourself and use --engine attach",
    )


def _settings(reading: VllmReading) -> dict[str, object]:
    found: dict[str, object] = {}
    for field, flag in WHOLE_NUMBERS.items():
        number = reading.number(flag) or _human(reading.pasted.last(flag))
        if number is not None and number > 0:
            found[field] = number
    for field, flag in TEXTS.items():
        text = _text(reading.pasted.last(flag))
        if text is not None:
            found[field] = text
    return found


def _need_k(k: object, method: str) -> int:
    if isinstance(k, int) and not isinstance(k, bool):
        return k
    raise UsageError(
        f"the line does not say how many tokens {method} drafts", hint=f"put {K} in its speculative config"
    )


def _whole(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _human(value: object) -> int | None:
    """8k, 8K and 1.5M, as vLLM reads them: a small letter counts in thousands, a capital one in 1,024s."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtKMGT])", str(value))
    if match is None:
        return None
    power = "kmgt".index(match[2].lower()) + 1
    return int(float(match[1]) * (1000 if match[2].islower() else 1024) ** power)


def _share(value: object) -> float | None:
    try:
        share = float(str(value))
    except ValueError:
        return None
    return share if 0.0 < share <= 1.0 else None


def _extra(left: Mapping[str, object]) -> Extra:
    return tuple(sorted((name, json.dumps(value)) for name, value in left.items()))
