"""Engines that lint knows by name and does not read: their flags are in none of its tables. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from speclift.linter.findings import LintFinding, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherEngine:
    """`programs` start it with any words or with one of `verbs`; `modules` after python -m and in imports."""

    engine: str
    title: str
    programs: tuple[str, ...]
    image: re.Pattern[str]
    modules: tuple[str, ...] = ()

    def finding(self, seen: str) -> LintFinding:
        said = f"this starts {self.title}, whose settings lint does not know: nothing of it was judged"
        return LintFinding(flag=seen, status=Status.UNREAD, message=said)


OTHER_ENGINES = (
    OtherEngine(
        engine="sglang",
        title="SGLang",
        programs=("sglang",),
        image=re.compile(r"(^|/)sglang[\w.-]*(:|@|$)"),
        modules=("sglang",),
    ),
    OtherEngine(
        engine="tensorrt-llm",
        title="TensorRT-LLM",
        programs=("trtllm-serve", "trtllm-build", "trtllm-bench", "trtllm-llmapi-launch"),
        image=re.compile(r"(^|/)(tensorrt-llm|tensorrt_llm)(/release)?[\w.-]*(:|@|$)"),
        modules=("tensorrt_llm",),
    ),
    OtherEngine(
        engine="ollama", title="Ollama", programs=("ollama",), image=re.compile(r"(^|/)ollama(:|@|$)")
    ),
)


def engine_of_program(word: str) -> OtherEngine | None:
    return next((other for other in OTHER_ENGINES if word in other.programs), None)


def engine_of_module(module: str) -> OtherEngine | None:
    package = module.partition(".")[0]
    return next((other for other in OTHER_ENGINES if package in other.modules), None)


def engine_of_image(image: str) -> OtherEngine | None:
    return next((other for other in OTHER_ENGINES if other.image.search(image)), None)


def engine_imported(text: str) -> tuple[OtherEngine, str] | None:
    """Of Python code, with the line that imports it."""
    for match in re.finditer(r"^[ \t]*(?:from|import)[ \t]+([\w.]+)[^\n]*", text, re.MULTILINE):
        other = engine_of_module(match[1])
        if other is not None:
            return other, match[0].strip()
    return None


def is_python_module(before: Sequence[str], word: str, after: Sequence[str]) -> bool:
    """Whether this word is the -m of `python -m package.module`."""
    return word == "-m" and bool(after) and bool(before) and "python" in before[-1]
