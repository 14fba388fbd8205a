"""What lint says about llama.cpp's newest build, asked of that build's own argument parser."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from pasted_commands import LLAMA
from speclift.engines.llamacpp.dialect.tables import CLI, FLAGS, NEWEST
from speclift.linter.rows import ValueKind
from speclift.verbs.lint import lint

pytestmark = pytest.mark.llama

SCRIPT = Path(__file__).with_name("parse_arguments.py")
# They end the program or ask a network.
LEFT_OUT = {
    "-h",
    "--help",
    "--usage",
    "--version",
    "--completion-bash",
    "--list-devices",
    "-cl",
    "--cache-list",
}
REFUSED = {
    name: text for name, text in LLAMA.items() if name not in ("server with a draft model", "new names")
}


def parsed(commands: list[list[str]]) -> list[dict[str, Any]]:
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("the embedded engine is not installed: pip install 'speclift[llama]'")
    # Among the flags are those that name files to write.
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, SCRIPT],
            input=json.dumps(commands),
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def translated() -> dict[str, dict[str, Any]]:
    argvs = []
    for text in LLAMA.values():
        found = lint(text).translated
        assert found is not None
        assert found.argv[0].rpartition("/")[2] == "llama-server"
        argvs.append(list(found.argv[1:]))
    return dict(zip(LLAMA, parsed(argvs), strict=True))


@pytest.mark.parametrize("name", LLAMA)
def test_llama_cpp_takes_what_a_tutorial_became(name: str, translated: dict[str, dict[str, Any]]) -> None:
    answer = translated[name]

    assert answer["ok"], answer["error"]
    assert answer["model"] == "target.gguf"
    assert answer["types"] == (["NGRAM_SIMPLE"] if "n-gram" in name else ["DRAFT_SIMPLE"])


def test_lengths_arrive_where_they_are_read(translated: dict[str, dict[str, Any]]) -> None:
    assert (translated["draft lengths"]["n_max"], translated["draft lengths"]["n_min"]) == (16, 4)
    assert translated["example program"]["n_max"] == 8
    assert translated["draft lengths"]["draft"] == "draft.gguf"
    # --draft-max limited n-gram drafts too; today their length is size-m.
    assert (translated["n-gram of January"]["size_n"], translated["n-gram of January"]["size_m"]) == (6, 8)


def test_it_refuses_what_was_pasted() -> None:
    answers = parsed([text.split()[1:] for text in REFUSED.values()])

    assert [name for name, answer in zip(REFUSED, answers, strict=True) if answer["ok"]] == []


def test_a_draft_model_alone_is_taken_and_means_no_speculation() -> None:
    (answer,) = parsed([LLAMA["server with a draft model"].split()[1:]])

    assert answer["ok"]
    assert answer["types"] == []


def test_every_flag_of_the_table_is_known_to_the_parser_and_no_other_is() -> None:
    names = [
        name
        for name, row in FLAGS.rows.items()
        if name not in LEFT_OUT and row.program != CLI and not row.renamed_to
    ]
    # A value of nonsense: the parser then complains of the value, or of the flag itself.
    answers = parsed([[name] if FLAGS[name].kind is ValueKind.SWITCH else [name, "1"] for name in names])
    unknown = {
        name for name, answer in zip(names, answers, strict=True) if "invalid argument" in answer["error"]
    }

    assert unknown == {name for name in names if not FLAGS[name].holds(NEWEST)}
