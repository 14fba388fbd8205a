"""vLLM's command line: argparse's, with dashes and underscores alike, beginnings for the whole, and keys after dots."""

from __future__ import annotations

import re
from collections.abc import Sequence

from speclift.core.engine_facts import metrics_of
from speclift.core.errors import UsageError
from speclift.engines.vllm.dialect.judgement import judge_vllm, read_settings
from speclift.engines.vllm.dialect.own_line import SPECULATIVE, take_apart_vllm
from speclift.engines.vllm.dialect.tables import CONFIG_FLAG, FLAGS, KEYS, LISTENING, NEWEST
from speclift.engines.vllm.dialect.translation import translate_vllm
from speclift.linter.dialect import (
    Dialect,
    Judgement,
    NestedConfig,
    Spelling,
    Started,
    base_name,
    is_after_flag,
    release_part,
)
from speclift.linter.metrics import MetricNames
from speclift.linter.pasted import Pasted, TakenApart
from speclift.linter.rows import NameTable, Release, Row

_MODULE = re.compile(r"vllm\.entrypoints\.(openai\.)?api_server")
_CLI_MODULE = re.compile(r"vllm(\.entrypoints\.cli\.main)?")


class VllmDialect(Dialect):
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

    def is_speculative(self, pasted: Pasted) -> bool:
        return read_settings(pasted).is_speculative

    def models(self, pasted: Pasted) -> tuple[str, ...]:
        draft = read_settings(pasted).config.get("model")
        named = (pasted.model, pasted.last("--model"), draft)
        return tuple(name for name in named if isinstance(name, str) and not name.startswith("["))

    def is_speculation(self, name: str) -> bool:
        row = self.flags.find(name.partition(".")[0])
        return name.partition(".")[0] in SPECULATIVE or (row is not None and row.key is not None)

    def taken_apart(self, pasted: Pasted) -> TakenApart:
        return take_apart_vllm(pasted)

    def judge(self, pasted: Pasted, release: Release, *, version: str) -> Judgement:
        reading = read_settings(pasted)
        return judge_vllm(reading, release=release, is_cpu="cpu" in version), translate_vllm(reading)


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
