"""What a study, a command or a log was once said to mean it still means: documents beside what went in.

A field may be added; none changes or goes. Where a change is meant, REWRITE_DOCUMENTS=1 writes what comes out today
over tests/recorded/documents, and its diff is what has changed.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from changes import ON_LLAMACPP, ON_VLLM, WITH_A_MODEL, WITHOUT_COUNTS, failing, slower

from recorded import RECORDED, differences, document_of, recorded_study
from running import Cli, Result

DOCUMENTS = RECORDED / "documents"
GATE = "--engine fake --method ngram --k 3 --requests 8 --max-tokens 16 --segment chat --segment verbatim-rewrite"
PLANNED = "--target llama-3.1-70b --draft llama-3.1-8b --gpu h100-80gb --gpus 4 --acceptance 0.6,0.8"
# On which day it was written.
UNLIKE = "written = "


class Document(NamedTuple):
    name: str
    study: str
    change: str
    words: str


STUDIES = [
    Document("decide", "decide", "", "compare decide"),
    Document("tune", "tune", "", "compare tune"),
    Document("by-load", "by-load", "", "compare by-load"),
    Document("by-temperature", "by-temperature", "", "compare by-temperature"),
    Document("two-arms", "two-arms", "", "compare two-arms --slo e2e_p95=400ms,tpot_p50=10ms"),
    Document("articles", "two-arms", WITH_A_MODEL, "compare two-arms"),
    Document(
        "articles-short",
        "by-load",
        f"{slower(0.5)}; UPDATE records SET output_tokens = 30",
        "compare by-load",
    ),
    Document("in-laps", "in-laps", "", "compare in-laps"),
    Document("in-laps-low-bar", "in-laps", "", "compare in-laps --min-speedup 1.02 --metric tpot"),
    Document("in-laps-part", "in-laps", slower(2, "segment = 'chat'", arm="ngram-k2"), "compare in-laps"),
    Document("open-loop", "open-loop", "", "compare open-loop"),
    Document("repeated", "repeated", "", "compare repeated"),
    Document("slow-tail", "slow-tail", slower(3, "id % 7 = 0"), "compare slow-tail"),
    Document("at-the-bar", "faster", slower(1.25), "compare faster --metric throughput"),
    Document("slower", "faster", slower(2), "compare faster"),
    Document(
        "failing",
        "faster",
        f"{WITHOUT_COUNTS}; {failing('id % 5 = 0', '503: busy')}",
        "compare faster --metric tpot",
    ),
    Document("rules", "by-load", "", "export by-load --to prometheus-rules"),
    Document("dashboard", "by-load", ON_VLLM, "export by-load --to grafana"),
    Document("compose", "by-load", ON_VLLM, "export by-load --to compose"),
    Document("kubernetes", "by-load", ON_LLAMACPP, "export by-load --to kubernetes"),
    Document("systemd", "by-load", ON_LLAMACPP, "export by-load --to systemd"),
    Document("serve-vllm", "by-load", ON_VLLM, "export by-load --to vllm"),
    Document("serve-llamacpp", "by-load", ON_LLAMACPP, "export by-load --to llama-server"),
    Document("gateway", "by-load", ON_VLLM, "export by-load --to gateway"),
]
OTHERS = [
    ("plan", f"plan {PLANNED}"),
    ("plan-ngram", "plan --target llama-3.1-8b --method ngram --gpu h200 --concurrency 1,64 --k 1,4,8"),
    ("plan-too-large", "plan --target llama-3.1-70b --gpu h100-80gb"),
    ("plan-llamacpp", "plan --engine llamacpp --target llama-3.1-8b --draft llama-3.2-1b --gpu rtx-4090"),
    ("lint", f"lint {DOCUMENTS / 'served.sh'}"),
    ("lint-llamacpp", "lint -- llama-server -m a.gguf -md b.gguf --draft 8 --draft-min 2 -c 4096"),
    ("replay", f"replay {DOCUMENTS / 'log.jsonl'} --k 1..4 --ngram 2..3"),
    (
        "replay-all",
        f"replay {DOCUMENTS / 'log.jsonl'} --k 3 --method ngram:map-k --method ngram:mod --cost 0.1",
    ),
]


def replaced(text: str, words: Mapping[str, str]) -> str:
    for before, after in words.items():
        text = text.replace(before, after)
    return text


def compare_with_kept(name: str, result: Result) -> None:
    here = {str(Path.cwd()): "HERE", sys.executable: "PYTHON"}
    document = json.loads(replaced(result.stdout, here))
    for file in document.get("files", ()):
        # Line by line.
        file["text"] = [line for line in file["text"].splitlines() if UNLIKE not in line]
    if os.environ.get("REWRITE_DOCUMENTS"):
        text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
        plain = DOCUMENTS / f"{name}.json"
        if plain.exists():
            plain.write_text(text, encoding="utf-8")
        else:
            plain.with_suffix(".json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    assert list(differences(document_of(name), document)) == []


@pytest.mark.parametrize("case", STUDIES, ids=lambda case: case.name)
def test_a_study_says_what_it_said(case: Document, cli: Cli, tmp_path: Path) -> None:
    recorded_study(case.study, tmp_path, case.change)
    compare_with_kept(case.name, cli(*case.words.split(), "--json"))


@pytest.mark.parametrize(("name", "words"), OTHERS, ids=[name for name, _ in OTHERS])
def test_without_a_server_the_same_is_said(name: str, words: str, cli: Cli) -> None:
    compare_with_kept(name, cli(*words.replace(" ", " --json ", 1).split()))


@pytest.mark.slow
def test_the_gate_says_the_same_of_the_same_server(cli: Cli) -> None:
    compare_with_kept("verify", cli("verify", *GATE.split(), "--json"))


def test_a_change_is_seen_and_an_addition_is_not() -> None:
    before = {"a": [1, {"b": 2}], "wall_s": 3}
    assert list(differences(before, {"a": [1, {"b": 2, "c": 0}], "wall_s": 4, "new": 1})) == []
    assert list(differences(before, {"a": [1, {"b": 5}]})) == [".a[1].b: 2 -> 5"]
    assert list(differences(before, {})) == [".a: [1, {'b': 2}] -> 'nothing'"]
    assert list(differences({"a": 1.475}, {"a": 1.4749999999999999})) == []
    assert list(differences({"a": 1.475}, {"a": 1.4750001})) == [".a: 1.475 -> 1.4750001"]
