"""vLLM's command line: argparse's, with dashes and underscores alike, beginnings for the whole, and keys after dots."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from speclift.core.engine_facts import metrics_of
from speclift.core.errors import UsageError
from speclift.engines.vllm.dialect.config_rules import K, method_of
from speclift.engines.vllm.dialect.judgement import (
    PYTHON_ONLY,
    RULES,
    SPECULATIVE,
    VllmReading,
    read_settings,
    row_of,
    take_apart_vllm,
)
from speclift.engines.vllm.dialect.tables import (
    CONFIG_FLAG,
    FLAGS,
    FRONT_END,
    KEYS,
    LISTENING,
    LOAD_FORMATS_GONE,
    NEWEST,
    QUANTISATIONS,
    SCHEDULE,
    VARIABLES,
    closest,
    same_bits,
    schedule_fault,
)
from speclift.linter.dialect import (
    NestedConfig,
    ReadingDialect,
    Spelling,
    Started,
    base_name,
    is_after_flag,
    release_part,
)
from speclift.linter.metrics import MetricNames
from speclift.linter.pasted import (
    Expression,
    Pasted,
    Setting,
    ShellExpression,
    TakenApart,
    config_json,
    parse_json,
)
from speclift.linter.row_rules import (
    Translation,
    converted,
    is_whole,
    shell_environment,
    shell_source,
    shown,
    yaml_text,
)
from speclift.linter.rows import NameTable, Release, Row, ValueKind, dotted

# One server in the forms that users paste. Flags come by name with what stands behind them: True for a switch, False
# for its --no- form


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


# A command of any age as it is written today, and what was lost


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

K_START = 5  # where the tuning guides start [S0 S3]
BATCH_MAX = 4096  # larger than any batch vLLM forms by itself; the last range also carries on beyond its end
# V0 took 1 for a lower end that was not given; V1 takes the upper end.
LOOKUP_MIN_V0 = 1
FIRST_KEYS = ("method", "model", K)


def translate_vllm(reading: VllmReading) -> Translation:
    pasted = reading.pasted
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
    pinned = _PINNED.search(pasted.wrapper[-1]) if pasted.wrapper and not pasted.program else None
    if pinned is not None and not pinned[0].endswith(f":v{dotted(NEWEST)}"):
        notes.append(
            f"the image was pinned to {pasted.wrapper[-1].rpartition(':')[2]}; this is for {dotted(NEWEST)}"
        )
    notes += _untold(pasted, reading.config)
    model = flags.pop("--model", pasted.model)
    argv = _argv(pasted, model, flags)
    environment = [(name, value) for name, value in shell_environment(pasted) if name not in VARIABLES]
    return Translation(
        argv=tuple(argv),
        source=shell_source(pasted, argv, environment),
        python=python_engine(model, flags),
        yaml=yaml_config(model, flags, nests=True),
        yaml_is="As YAML for --config",
        notes=tuple(dict.fromkeys(notes)),
    )


def _untold(pasted: Pasted, config: Mapping[str, object]) -> Iterable[str]:
    """Python that stands for a value, of which a command line and YAML know nothing."""
    named = [*((setting.spelled, setting.value) for setting in pasted.settings), *config.items()]
    for name, value in named:
        if isinstance(value, Expression) and not isinstance(value, ShellExpression):
            yield f"{name} is {value.text}, known only when the program runs: put its value in"


def _flags(reading: VllmReading, notes: list[str]) -> dict[str, object]:
    """Flags that are no part of the speculative config, as today's parser takes them; True for a switch."""
    flags: dict[str, object] = {}
    for setting in reading.others:
        row = row_of(setting)
        if setting.name in PYTHON_ONLY and row is None:
            continue
        if row is None:
            notes.append(f"{setting.spelled} was left out: vLLM has no such flag")
        elif row.holds(NEWEST):
            _keep(setting, row, reading, flags, notes)
        else:
            _replace(setting, row, flags, notes)
    return flags


def _keep(
    setting: Setting, row: Row, reading: VllmReading, flags: dict[str, object], notes: list[str]
) -> None:
    value = setting.value
    if re.fullmatch(r"-O\d", setting.spelled):
        flags["--optimization-level"] = int(setting.spelled[2:])
    elif setting.name == "--per-request-spec-decode-metrics" and not reading.is_speculative:
        notes.append(f"{setting.spelled} was left out: the server has no speculative config")
    elif setting.name == "--quantization" and isinstance(value, str) and _is_gone(value):
        _requantise(setting, value, flags, notes)
    elif setting.name == "--load-format" and shown(value) in LOAD_FORMATS_GONE:
        notes.append(f"{setting.spelled} {shown(value)} was dropped with it; the default detects the format")
    elif row.kind is ValueKind.SWITCH and "." not in setting.name:
        flags[setting.name] = converted(value, ValueKind.SWITCH) is True and not setting.is_off
    elif value is None and row.kind is not ValueKind.SWITCH:
        notes.append(f"{setting.spelled} was left out: it has no value")
    else:
        flags[setting.name] = converted(value, row.kind)


def _requantise(setting: Setting, value: str, flags: dict[str, object], notes: list[str]) -> None:
    """Never without a word: weights that were quantised take several times the memory when they are not."""
    instead = same_bits(value)
    if instead is not None:
        flags[setting.name] = instead
        notes.append(f"{setting.spelled} {value} became {instead}")
        return
    notes.append(
        f"{setting.spelled} {value} has no equivalent; closest: {closest(value)}. Without one of them the weights are"
        " not quantised, take two to four times the memory and may not fit: put one in, and ask speclift plan"
    )


def _is_gone(quantisation: str) -> bool:
    return quantisation in QUANTISATIONS and not QUANTISATIONS.holds(quantisation, NEWEST)


def _replace(setting: Setting, row: Row, flags: dict[str, object], notes: list[str]) -> None:
    if row.name == "--task":
        flags["--runner"] = RUNNERS.get(shown(setting.value), "auto")
    elif row.name in ("--rope-scaling", "--rope-theta"):
        key = row.name.removeprefix("--").replace("-", "_")
        overrides = flags.get("--hf-overrides", {})
        if isinstance(overrides, dict):
            flags["--hf-overrides"] = {**overrides, key: converted(setting.value, row.kind)}
    elif row.renamed_to is not None:
        flags[row.renamed_to] = converted(setting.value, row.kind)
    elif row.replacement is not None:
        name, _, value = row.replacement.partition(" ")
        if name in FLAGS:
            flags[name] = value
    elif row.name not in SILENT:
        notes.append(f"{setting.spelled} was left out: {row.note or 'vLLM no longer has it'}")


# The speculative config


def translate_config(
    config: Mapping[str, object],
    *,
    tensor_parallel: int | None,
    max_model_len: int | None,
    is_from_flags: bool,
) -> tuple[dict[str, object], list[str]]:
    """Today's keys in reading order, and notes. `is_from_flags`: it was the old flags, with V0's defaults."""
    given = {name.replace("-", "_"): value for name, value in config.items() if value is not None}
    notes: list[str] = []
    method = method_of(given, NEWEST)
    today: dict[str, object] = {"method": method}
    if given.get("model") and method not in ("ngram", "ngram_gpu", "suffix"):
        today["model"] = given["model"]
    _translate_k(given, method, today, notes)
    if method in ("ngram", "ngram_gpu") and is_from_flags and "prompt_lookup_max" in given:
        given.setdefault("prompt_lookup_min", LOOKUP_MIN_V0)
    _translate_batch_limit(given, today, notes)
    _translate_acceptance(given, today, notes)
    _translate_draft(given, method, tensor_parallel, max_model_len, today, notes)
    handled = {*FIRST_KEYS, "disable_by_batch_size", *_ACCEPTANCE, *_DRAFT}
    for name, value in given.items():
        if name not in handled:
            _keep_or_drop(name, value, method, today, notes)
    return today, notes


def _translate_k(
    given: Mapping[str, object], method: str, today: dict[str, object], notes: list[str]
) -> None:
    k = given.get(K)
    is_variable = k is not None and not isinstance(k, int)
    if is_variable or (is_whole(k) and k > 0):
        today[K] = k
    elif method != "suffix":
        today[K] = K_START
        notes.append(f"k was not given; {K_START} is a usual start: measure it (speclift decide --k 3,5,7)")


def _translate_batch_limit(given: Mapping[str, object], today: dict[str, object], notes: list[str]) -> None:
    limit, k = given.get("disable_by_batch_size"), today.get(K)
    if limit is None:
        return
    if not isinstance(limit, int) or not isinstance(k, int):
        notes.append(f"disable_by_batch_size was removed; closest: {SCHEDULE} with k = 0 above that size")
        return
    today[SCHEDULE] = [[1, limit, k], [limit + 1, max(BATCH_MAX, limit + 1), 0]]
    notes.append(
        f"disable_by_batch_size {limit} became {SCHEDULE}: k = {k} up to {limit} requests in a step, 0 above."
        " It applies to every step, not per new request, so measure at the threshold"
    )


_ACCEPTANCE = (
    "acceptance_method",
    "posterior_threshold",
    "posterior_alpha",
    "rejection_sample_method",
    "synthetic_acceptance_rate",
    "draft_sample_method",
)


def _translate_acceptance(given: Mapping[str, object], today: dict[str, object], notes: list[str]) -> None:
    if given.get("acceptance_method") == "typical_acceptance_sampler" or "posterior_threshold" in given:
        notes.append(
            "typical acceptance has no equivalent: it changed the output. Closest: standard rejection"
            " sampling, which keeps it; draft_sample_method probabilistic raises acceptance above temperature 0"
        )
    sampler = given.get("rejection_sample_method")
    if sampler in ("strict", "probabilistic"):
        notes.append(f"rejection_sample_method {sampler} is called standard since 0.21")
    elif sampler is not None:
        today["rejection_sample_method"] = sampler
    drafting = "probabilistic" if sampler == "probabilistic" else given.get("draft_sample_method")
    if drafting is not None:
        today["draft_sample_method"] = drafting
    rate, k = given.get("synthetic_acceptance_rate"), today.get(K)
    if isinstance(rate, (int, float)) and isinstance(k, int):
        today["synthetic_acceptance_rates"] = [round(float(rate) ** (index + 1), 6) for index in range(k)]
        notes.append("synthetic_acceptance_rate became the list of unconditional rates, one per position")


_DRAFT = ("tensor_parallel_size", "draft_tensor_parallel_size", "quantization", "max_model_len")


def _translate_draft(
    given: Mapping[str, object],
    method: str,
    tensor_parallel: int | None,
    max_model_len: int | None,
    today: dict[str, object],
    notes: list[str],
) -> None:
    _translate_draft_size(given, method, tensor_parallel or 1, today, notes)
    quantisation = given.get("quantization")
    if isinstance(quantisation, str) and not QUANTISATIONS.holds(quantisation, NEWEST):
        notes.append(
            f"a {quantisation} draft has no equivalent; closest: {closest(quantisation)}."
            " Unquantised it takes two to four times the memory and may not fit"
        )
    elif quantisation is not None:
        today["quantization"] = quantisation
    length = given.get("max_model_len")
    if isinstance(length, int) and max_model_len is not None and length > max_model_len:
        notes.append(
            f"max_model_len {length} of the draft is above the target's {max_model_len} and was left out"
        )
    elif length is not None:
        today["max_model_len"] = length


def _translate_draft_size(
    given: Mapping[str, object], method: str, target: int, today: dict[str, object], notes: list[str]
) -> None:
    draft = given.get("draft_tensor_parallel_size", given.get("tensor_parallel_size"))
    if draft is None or draft == target:
        return
    if method == "draft_model" or draft != 1:
        notes.append(
            f"a draft on {draft} of {target} GPUs has no equivalent: today's runner uses as many GPUs for the draft"
            " as for the target"
        )
    else:
        today["draft_tensor_parallel_size"] = draft


def _keep_or_drop(name: str, value: object, method: str, today: dict[str, object], notes: list[str]) -> None:
    row = KEYS.find(name)
    if row is None or row.kind is ValueKind.INTERNAL or not row.holds(NEWEST):
        notes.append(
            f"{name} was left out: {row.note if row is not None and row.note else 'vLLM has no such key'}"
        )
    elif row.methods and method not in row.methods:
        notes.append(f"{name} was left out: {method} ignores it")
    elif name == SCHEDULE and schedule_fault(value) is not None:
        notes.append(f"{name} was left out: {schedule_fault(value)}")
    else:
        today[name] = value


# Forms


def _argv(pasted: Pasted, model: object, flags: Mapping[str, object]) -> list[str]:
    if pasted.wrapper and not pasted.program:  # a container whose entry point is the server
        head = [*_container(pasted.wrapper), *(["--model", shown(model)] if model is not None else [])]
    else:
        head = [*pasted.wrapper, "vllm", "serve", *([shown(model)] if model is not None else [])]
    words = (word for name, value in flags.items() for word in flag_words(name, value))
    return [*head, *words, *pasted.carried]


def _container(wrapper: Sequence[str]) -> list[str]:
    """docker run without variables that nothing reads, and with the image of the release that was translated to."""
    words: list[str] = []
    for word in wrapper:
        if words and words[-1] in ("-e", "--env") and word.partition("=")[0] in VARIABLES:
            words.pop()
        else:
            words.append(word)
    *before, image = words
    return [*before, _PINNED.sub(rf"\1:v{dotted(NEWEST)}", image)]


# The dialect


_MODULE = re.compile(r"vllm\.entrypoints\.(openai\.)?api_server")
_CLI_MODULE = re.compile(r"vllm(\.entrypoints\.cli\.main)?")


class VllmDialect(ReadingDialect[VllmReading]):
    rules = RULES
    engine = "vllm"
    newest = NEWEST
    flags = FLAGS
    programs = ("vllm",)
    examples = (
        "vllm serve",
        "python -m vllm.entrypoints…",
        "docker run … vllm/vllm-openai",
        "LLM(...)",
    )
    image = re.compile(r"(^|/)(vllm-openai|vllm)[\w.-]*(:|@|$)")
    image_starts = ("vllm", "serve")
    takes_model_by_place = True
    listening = LISTENING
    glued = re.compile(r"(-O)(\d)")
    config = NestedConfig(
        flag=CONFIG_FLAG, keys=KEYS, telling=frozenset({"method", "num_speculative_tokens"})
    )
    python_makers = ("LLM", "EngineArgs", "AsyncEngineArgs", "AsyncLLMEngine", "LLMEngine", "AsyncLLM")
    python_sampling = "SamplingParams"
    metrics = MetricNames.of(metrics_of("vllm"), title="vLLM")

    def image_release(self, image: str) -> str | None:
        """`vllm/vllm-openai:v0.24.0`."""
        match = re.search(r":v?(\d+\.\d+\.\d+)", image)
        return None if match is None else match[1]

    def parse_release(self, text: str) -> Release:
        """`0.24`, `v0.24.0`, `0.32.0+cpu`, `vllm 0.10.1.1`."""
        match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
        if match is None:
            raise UsageError(f"--engine-version {text!r} is not a vLLM release", hint="such as 0.24.0")
        return tuple(release_part(part or "0", text) for part in match.groups())

    def find_program(
        self, word: str, before: Sequence[str], after: Sequence[str], *, is_asked: bool
    ) -> Started | None:
        if base_name(word) in self.programs and not is_after_flag(before):
            if after[:1] == ["serve"]:
                return Started(wrapper=before, program=("vllm", "serve"), arguments=after[1:])
            if not after or after[0].startswith("-"):
                return Started(wrapper=before, program=("vllm",), arguments=after)
        is_module = word == "-m" and after and before and "python" in before[-1]
        return _module(before, after) if is_module else None

    def plain_name(self, flag: str) -> str:
        return _name(flag).partition(".")[0]

    def find_row(self, spelled: str, release: Release | None) -> Spelling:
        table, name = self.flags, _name(spelled)
        head, dot, key = name.partition(".")
        row = table.find("--compilation-config" if head == "-O" else head)
        if row is not None:
            return row.name + dot + key, row, False
        row = table.find(f"--{head.removeprefix('--no-')}") if head.startswith("--no-") else None
        if row is not None:
            return row.name, row, True
        row = _completed(head, table, release)
        return (name if row is None else row.name + dot + key), row, False

    def read(self, pasted: Pasted, *, version: str = "") -> VllmReading:
        return read_settings(pasted, version=version)

    def speculates(self, reading: VllmReading) -> bool:
        return reading.is_speculative

    def translate(self, reading: VllmReading) -> Translation:
        return translate_vllm(reading)

    def models(self, pasted: Pasted) -> tuple[str, ...]:
        draft = read_settings(pasted).config.get("model")
        named = (pasted.model, pasted.last("--model"), draft)
        return tuple(name for name in named if isinstance(name, str) and not name.startswith("["))

    def is_speculation(self, name: str) -> bool:
        row = self.flags.find(name.partition(".")[0])
        return name.partition(".")[0] in SPECULATIVE or (row is not None and row.key is not None)

    def taken_apart(self, pasted: Pasted) -> TakenApart:
        return take_apart_vllm(pasted)


def _module(before: Sequence[str], after: Sequence[str]) -> Started | None:
    """python -m, with the server's module or with the one of the vllm command."""
    verb = ["serve"] if _CLI_MODULE.fullmatch(after[0]) else []
    if list(after[1 : 1 + len(verb)]) != verb or not (verb or _MODULE.fullmatch(after[0])):
        return None
    program = (before[-1], "-m", after[0], *verb)
    return Started(wrapper=before[:-1], program=program, arguments=after[1 + len(verb) :])


def _name(spelled: str) -> str:
    """vLLM takes dashes and underscores alike up to the first dot."""
    if not spelled.startswith("--"):
        return spelled
    head, dot, key = spelled.partition(".")
    return head.replace("_", "-") + dot + key


def _completed(head: str, table: NameTable, release: Release | None) -> Row | None:
    """argparse takes an unambiguous beginning for the whole."""
    if not head.startswith("--"):
        return None
    longer = {
        row.name: row
        for known, row in table.rows.items()
        if known.startswith(head) and (release is None or row.holds(release))
    }
    return longer.popitem()[1] if len(longer) == 1 else None


DIALECT = VllmDialect()
