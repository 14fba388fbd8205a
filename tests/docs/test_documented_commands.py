"""Every command that README and docs show is one that works: the real command line parses it, and it runs.

It runs in a folder with the files that the pages name. Models, engines and servers of a reader are stood in for by the
fake engine, by fake servers and, for vLLM, by an interpreter that tells a version to a dry run.
"""

from __future__ import annotations

import io
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from hf_folders import write_folder
from metric_texts import RULES
from routed import routed
from running import Cli, Decided, fake_flags, hosted
from speclift.cli.main import app
from speclift.live.gateway.access_log import access_line

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
RECORDED = ROOT / "tests" / "recorded" / "documents"
PROGRAMS = re.compile(r"(?:.*\| )?((?:speclift|make) .*)")

MEASURING = ("decide", "tune", "measure", "verify")
SMALL = ("--requests", "4", "--max-tokens", "12", "--launches", "1")
# Verdicts and what lint and plan say of theirs; 1 is an operating error and 2 wrong usage.
ANSWERS = (0, 3, 4, 5, 6)
# These bring the embedded model or read it.
NEED_LLAMA = ("speclift models fetch", "speclift models inspect smollm2-135m")


def shown_commands(page: str) -> Iterator[str]:
    """Lines of fenced blocks that start with one of our programs, or hand something on to one."""
    for block in re.findall(r"^```.*?\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            command = PROGRAMS.fullmatch(line.removeprefix("$ "))
            if command is not None:
                yield shlex.join(shlex.split(command[1], comments=True))


SHOWN = sorted({command for path in PAGES for command in shown_commands(path.read_text(encoding="utf-8"))})
OURS = [command for command in SHOWN if command.startswith("speclift ")]


def parse(command: str) -> None:
    """As the program itself would, up to where it would start to work."""
    _, *words = shlex.split(command)
    parser: object = get_command(app)
    while isinstance(parser, TyperGroup):
        name, *words = words
        parser = parser.commands[name]
    assert isinstance(parser, TyperCommand)
    parser.make_context(parser.name, words)


def test_the_pages_show_every_verb() -> None:
    program = get_command(app)
    assert isinstance(program, TyperGroup)
    assert {shlex.split(command)[1] for command in OURS} == program.commands.keys()


def test_commands_are_found_wherever_a_page_shows_them() -> None:
    block = "speclift plan \\\n  --gpu h200  # why\n$ make demo\ncat x | speclift lint -\nother\n"
    page = f"speclift prose\n```\n{block}```\n"
    assert list(shown_commands(page)) == ["speclift plan --gpu h200", "make demo", "speclift lint -"]


@pytest.mark.parametrize("command", OURS)
def test_the_command_line_takes_it(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parse(command)


@pytest.mark.parametrize("command", ["speclift decide --methods ngram", "speclift compare --json"])
def test_a_flag_that_is_not_there_or_missing_is_seen(command: str) -> None:
    with pytest.raises(Exception, match=r"No such option|Missing parameter"):
        parse(command)


@pytest.mark.parametrize("command", [command for command in SHOWN if command.startswith("make ")])
def test_the_makefile_has_it(command: str) -> None:
    done = subprocess.run(
        ["make", "--dry-run", *shlex.split(command)[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# Running them


@pytest.fixture(scope="module")
def addresses() -> Iterator[dict[str, str]]:
    """The servers that pages name, and the fake ones in their place."""
    with hosted("flavour=vllm") as baseline, hosted("flavour=vllm", "k=4", "acceptance=0.9") as spec:
        yield {
            "http://127.0.0.1:8000": baseline,
            "http://127.0.0.1:8001": spec,
            "http://10.0.0.5:8000": baseline,
            "http://10.0.0.6:8000": spec,
            "https://llm.example.com/v1": baseline,
        }


def stood_in(words: list[str], addresses: dict[str, str], folder: Path) -> list[str]:
    """The same command for a machine without models, engines or servers."""
    verb, *flags = [addresses.get(word, word) for word in words]
    if "--on" in flags:  # a cluster is another question: tests/fleet
        place = flags.index("--on")
        del flags[place : place + 2]
    if verb == "doctor":
        return [verb, *flags, "--quick"]
    if verb == "watch":
        briefly = [] if "--once" in flags or "-" in flags else ["--for", "300ms"]
        anywhere = ["127.0.0.1:0" if word.endswith(":9400") else word for word in flags]
        return [verb, *anywhere, *briefly, "--interval", "100ms"]
    if verb == "gateway":  # it would serve until it is told to stop
        # Whether its study allows anything is another question.
        return [verb, *flags, "--learn", "--canary", "5%", *([] if "--dry-run" in flags else ["--dry-run"])]
    if verb not in MEASURING or "--resume" in flags:
        return [verb, *flags]
    if "--" in flags or "--from" in flags:  # a line of the user's own has its own engine
        return [verb, "--dry-run", *flags]
    engine = flags[flags.index("--engine") + 1] if "--engine" in flags else ""
    if engine == "vllm":
        return [verb, *flags, "--vllm-python", str(vllm_python(folder)), "--dry-run"]
    quick = ["--no-verify"] if verb in ("decide", "tune") else []
    return [verb, *flags, *SMALL, *quick, *([] if engine == "attach" else fake_flags())]


def vllm_python(folder: Path) -> Path:
    script = folder / "python"
    script.write_text("#!/bin/sh\necho 'vllm 0.24.0'\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def prepare_folder(folder: Path, study: Path, *, with_studies: bool) -> None:
    """With the files that pages name."""
    lines = [f'{{"prompt": "Where is parcel {number}?", "max_tokens": 12}}\n' for number in range(8)]
    (folder / "traffic.jsonl").write_text("".join(lines))
    shutil.copy(RECORDED / "log.jsonl", folder / "requests.jsonl")
    (folder / "access.jsonl").write_bytes(
        b"".join(
            access_line(
                replace(
                    routed(), request_body=line.encode(), answer_text="At the depot, where it was sent from."
                ),
                keeps_text=True,
            )
            for line in lines
        )
    )
    shutil.copy(RECORDED / "served.sh", folder / "serve.sh")
    (folder / "start.sh").write_text("#!/bin/sh\nvllm serve ./model --max-model-len 1024\n")
    (folder / "rules.yml").write_text(RULES)
    (folder / "logs").mkdir()
    shutil.copy(RECORDED / "log.jsonl", folder / "logs" / "monday.jsonl")
    for name in ("model", "draft", "smollm2"):
        (folder / name).mkdir()
        write_folder(folder / name)
    if with_studies:
        for name in ("mine", "tutorial"):
            shutil.copytree(study, folder / "studies" / name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=pytest.mark.slow if command.startswith("speclift tune") else ())
        for command in OURS
        if command not in NEED_LLAMA
    ],
)
def test_it_runs(
    command: str,
    cli: Cli,
    decided: Decided,
    addresses: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, *words = shlex.split(command)
    monkeypatch.setenv("LLM_KEY", "open-sesame")
    monkeypatch.setenv("HOOK_KEY", "open-sesame")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((RECORDED / "served.sh").read_bytes())))
    if words[0] == "watch":
        page = (ROOT / "tests" / "recorded" / "vllm-0.32.0-metrics.txt").read_bytes()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(page)))
        (tmp_path / "watch.toml").write_text(
            f'urls = ["{addresses["http://127.0.0.1:8001"]}"]\nbreak_even = 2\n'
        )
    if words[0] == "gateway":
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"messages": []}')))
    if "speclift.toml" in words:
        (tmp_path / "speclift.toml").write_text('engine = "fake"\nmethod = ["ngram"]\nk = [3, 5]\n')
    uses_studies = words[0] in ("compare", "report", "export", "watch", "gateway") or "--resume" in words
    prepare_folder(tmp_path, decided.study, with_studies=uses_studies)
    result = cli(*stood_in(words, addresses, tmp_path))
    assert result.code in ANSWERS, result.stderr


@pytest.mark.llama
@pytest.mark.parametrize("command", NEED_LLAMA)
def test_it_runs_on_the_embedded_model(
    embedded_model: Path, command: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command in OURS
    monkeypatch.setenv("SPECLIFT_CACHE", str(embedded_model.parents[1]))
    result = cli(*shlex.split(command)[1:])
    assert result.code == 0, result.stderr
    assert embedded_model.name in result.stdout
