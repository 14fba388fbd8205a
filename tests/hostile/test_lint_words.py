"""Lines as people mangle them: whatever happened to the words, lint calls none of them fine that it has not placed.

What became of a word is looked for here, in the command of today and in what is said, and not asked of the code that
read it. Under the night profile these are 10,000 lines.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclift.core.errors import UsageError
from speclift.engines.llamacpp.dialect.tables import FLAGS as LLAMA_FLAGS
from speclift.engines.vllm.dialect.tables import FLAGS as VLLM_FLAGS
from speclift.linter.report import LintReport
from speclift.linter.rows import NameTable, Status
from speclift.verbs.lint import lint

CONFIG = '{"method":"eagle3","model":"org/head","num_speculative_tokens":3}'
LINES = {
    "vLLM today": f"vllm serve org/m -tp 2 --quantization fp8 --max-model-len 8192 --enforce-eager --seed 0 "
    f"--speculative-config '{CONFIG}' --served-model-name a b --no-enable-prefix-caching",
    "vLLM by parts": "vllm serve org/m --port 8000 -sc.method ngram -sc.num_speculative_tokens 4 "
    "-sc.prompt_lookup_max 3 --gpu-memory-utilization 0.90 --kv-cache-dtype fp8 -O2",
    "vLLM as a module": "CUDA_VISIBLE_DEVICES=0,1 python3 -m vllm.entrypoints.openai.api_server --model org/m "
    "--dtype bfloat16 --enable_chunked_prefill True --host 0.0.0.0",
    "vLLM in a container": "docker run --rm --gpus all -e A=1 -p 8000:8000 vllm/vllm-openai:latest --model org/m "
    "--tensor-parallel-size 4 --cpu-offload-gb 8",
    "llama.cpp today": "llama-server -m m.gguf --spec-draft-model d.gguf --spec-type draft-simple "
    "--spec-draft-n-max 8 -ngl 99 -ts 1,1 --cache-type-k q8_0 -c 4096 -fa on --no-webui",
}  # fmt: skip
UNKNOWN = [
    "extra",
    "--bogus",
    "7",
    "-x",
    "q",
    "",
    "true",
    "on",
    "none",
    "--",
    "-",
    "--port",
    "serve",
    "a=b",
    "é",
    "*",
]


@st.composite
def mangled(draw: st.DrawFn, line: str) -> tuple[list[str], str]:
    """The words of a line after some accidents, and the line as a shell would be given it."""
    words = shlex.split(line)
    for _ in range(draw(st.integers(1, 3))):
        at, other = draw(st.integers(0, len(words) - 1)), draw(st.integers(0, len(words) - 1))
        match draw(st.sampled_from(["drop", "double", "swap", "glue", "insert", "pair"])):
            case "drop" if len(words) > 2:
                del words[at]
            case "double":
                words.insert(other, words[at])
            case "pair":
                words += words[at : at + 2]
            case "swap":
                words[at], words[other] = words[other], words[at]
            case "glue" if at + 1 < len(words):
                words[at : at + 2] = [words[at] + draw(st.sampled_from(["", "=", ","])) + words[at + 1]]
            case _:
                words.insert(at, draw(st.sampled_from(UNKNOWN)))
    return words, " ".join(draw(quoted(word)) for word in words)


@st.composite
def quoted(draw: st.DrawFn, word: str) -> str:
    """One word for a shell, in quotes that nobody would choose."""
    at = draw(st.integers(0, len(word)))
    is_plain = re.fullmatch(r"[\w@%+=:,./-]+", word) is not None
    return draw(
        st.sampled_from(
            [
                shlex.quote(word),
                f"{shlex.quote(word[:at])}{shlex.quote(word[at:])}",
                f'"{word}"' if is_plain else shlex.quote(word),
            ]
        )
    )


def leaves(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner)
    else:
        yield value if isinstance(value, str) else json.dumps(value)


def parts_of(word: str) -> list[str]:
    """What JSON in it holds, or what commas in it part; nothing where it is one piece."""
    try:
        value = json.loads(word)
    except ValueError:
        return word.split(",") if "," in word else []
    return list(leaves(value)) if isinstance(value, (dict, list)) else []


def spellings(flag: str, table: NameTable) -> frozenset[str]:
    """Every way in which the table lets this flag be written, and the key or the name that carries its value today."""
    plain = flag.replace("_", "-") if flag.startswith("--") else flag
    head, dot, key = plain.partition(".")
    on = f"--{head[5:]}" if head.startswith("--no-") and head not in table else head
    rows = [row for row in table if on in row.names]
    rows = rows or [row for row in table if on.startswith("--") and row.name.startswith(on)]
    names = {name for row in rows for name in (*row.names, *(f"--no-{name[2:]}" for name in row.names))}
    # llama.cpp's other names say so in their note.
    names |= {row.note.rpartition(" ")[2] for row in rows if row.note.startswith("today's name is")}
    return frozenset({key.replace("-", "_")} if dot else names | {flag})


class Accounts:
    """Where a word of the line may be found again."""

    def __init__(self, report: LintReport) -> None:
        today = report.translated
        assert today is not None
        self.table = LLAMA_FLAGS if report.engine == "llamacpp" else VLLM_FLAGS
        written = [*today.argv, *(word for word in shlex.split(today.command) if word not in today.argv)]
        self.there = Counter([*written, *(part for word in written for part in parts_of(word))])
        # An "ok" is no account of a word: that is what is in question.
        faults = [found for found in report.findings if found.status is not Status.OK]
        self.told = " ".join(
            [*today.notes, *report.notes, *(f"{each.flag} {each.message}" for each in faults)]
        )

    def times(self, word: str) -> int:
        """How often a value is written today, as the text or as the number that it was."""
        try:
            number = float(word)
        except ValueError:
            return self.there[word]
        return sum(
            count
            for other, count in self.there.items()
            if other == word or (re.fullmatch(r"-?\d+(\.\d+)?", other) and float(other) == number)
        )

    def has(self, word: str) -> bool:
        if word in SAME or self.times(word) or self.says(word):
            return True
        if word.startswith("-"):
            level = re.fullmatch(r"-O(\d)", word)
            return not spellings(word, self.table).isdisjoint(self.there) or bool(
                level and self.there[level[1]]
            )
        parts = parts_of(word)
        return bool(parts) and all(map(self.has, parts))

    def says(self, word: str) -> bool:
        return bool(word) and re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w.-])", self.told) is not None

    def is_short_of(self, word: str, before: set[object]) -> bool:
        """Whether it was written behind more different words than it is today."""
        is_value = not word.startswith("-") and word not in SAME and not parts_of(word)
        return is_value and not self.says(word) and self.times(word) < len(before)


# How a server is started, and what a switch says anyway.
SAME = {"python3", "vllm.entrypoints.openai.api_server", "True", "true", "False", "false", "--"}
MODULE = ["python3", "-m", "vllm.entrypoints.openai.api_server"]


def unaccounted(words: Sequence[str], report: LintReport) -> list[str]:
    accounts = Accounts(report)
    parted = [
        part
        for word in words
        for part in ([word] if accounts.there[word] or word[:1] != "-" else word.split("=", 1))
    ]
    before: dict[str, set[object]] = {}
    lost = []
    for index, word in enumerate(parted):
        previous = parted[index - 1] if index else ""
        is_start = parted[max(0, index - 1) : index + 2] == MODULE or (
            word == "--model" and accounts.has(parted[index + 1])
        )
        if not is_start and not accounts.has(word):
            lost.append(word)
        is_flag = previous.startswith("-")
        before.setdefault(word, set()).add(spellings(previous, accounts.table) if is_flag else index)
    return lost + [word for word, places in before.items() if accounts.is_short_of(word, places)]


@pytest.mark.parametrize("name", LINES)
def test_a_line_by_itself_is_fine_and_all_of_it_is_there(name: str) -> None:
    report = lint(LINES[name])
    assert report.ok
    assert unaccounted(shlex.split(LINES[name]), report) == []


@pytest.mark.timeout(900)  # of a night's 2,000 lines each
@pytest.mark.parametrize("name", LINES)
@given(data=st.data())
def test_a_mangled_line_is_never_fine_with_a_word_left_over(name: str, data: st.DataObject) -> None:
    words, line = data.draw(mangled(LINES[name]))
    try:
        report = lint(line)
    except UsageError:
        return
    if report.ok:
        assert unaccounted(words, report) == []
