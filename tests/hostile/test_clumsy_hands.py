"""Files that are in the wrong place, closed, endless or gone: nothing measured is lost, nothing secret is said."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from running import LIMIT_S, Cli, Decided, command, fake_flags, finish, start
from speclift.studies.study import Study

POOLS = ("--spec", "http://127.0.0.1:1", "--plain", "http://127.0.0.1:2")
SECRET = "T0P-SECRET"
OVER = {
    "report": ("report", "s", "--out", "s/study.sqlite"),
    "report to Markdown": ("report", "s", "--markdown", "s/study.sqlite"),
    "compare": ("compare", "s", "--markdown", "s/study.sqlite"),
    "compare to a page": ("compare", "s", "--out", "s/study.sqlite"),
    "export": ("export", "s", "--to", "prometheus-rules", "--arm", "ngram-k4", "--out", "s/study.sqlite"),
    "decide": ("decide", *fake_flags(), "--study", "other", "--out", "s/study.sqlite"),
    "a study to come": ("decide", *fake_flags(), "--study", "new", "--out", "new/study.sqlite"),
    "its verdict": ("report", "s", "--out", "s/verdict.json"),
    "its log": ("compare", "s", "--markdown", "s/study.sqlite-wal"),
    "another name": ("compare", "s", "--out", "link.html"),
    "verify": ("verify", *fake_flags(), "--junit", "s/study.sqlite"),
    "the gateway's log": ("gateway", *POOLS, "--access-log", "s/study.sqlite"),
    "a watch's history": ("watch", "http://127.0.0.1:1", "--history", "s/study.sqlite", "--for", "1s"),
}


@pytest.mark.parametrize("words", OVER.values(), ids=OVER.keys())
def test_no_output_replaces_a_studys_database(
    words: tuple[str, ...], decided: Decided, cli: Cli, tmp_path: Path
) -> None:
    shutil.copytree(decided.study, tmp_path / "s")
    (tmp_path / "link.html").symlink_to("s/study.sqlite")
    before = (tmp_path / "s" / "study.sqlite").read_bytes()
    result = cli(*words)
    assert (result.code, result.stdout) == (2, ""), result.stderr
    assert (tmp_path / "s" / "study.sqlite").read_bytes() == before
    with Study.open(tmp_path / "s") as study:
        assert study.records()


GONE: dict[str, Callable[[Path], object]] = {
    "folder deleted": shutil.rmtree,
    "database deleted": lambda study: (study / "study.sqlite").unlink(),
    "folder renamed": lambda study: study.rename(study.with_name("renamed")),
}


@pytest.mark.parametrize("vanish", GONE.values(), ids=GONE.keys())
def test_a_study_that_vanishes_while_it_is_measured_gives_no_verdict(
    vanish: Callable[[Path], object], tmp_path: Path
) -> None:
    size = ("--segment", "chat", "--requests", 40, "--max-tokens", 24, "--launches", 2, "--verify", "off")
    slow = fake_flags("ttft_s=0.01", "tpot_s=0.004", "spec.acceptance=0.9", fast=False)
    process = start(["decide", *size, *slow, "--fixed", "--study", "s"], cwd=tmp_path)
    assert process.stderr is not None
    while "launch 1: ngram-k4" not in process.stderr.readline():
        assert process.poll() is None
    vanish(tmp_path / "s")
    result = finish(process)
    assert (result.code, "the study at s is gone" in result.stderr) == (1, True), result.stderr
    assert result.stdout == ""
    assert not (tmp_path / "s" / "report.html").exists()


CLOSED = {
    "watch": (("watch", "-"), "<&-", "cannot read standard input: it is closed"),
    "lint": (("lint", "-"), "<&-", "cannot read standard input: it is closed"),
    "a pasted line": (("decide", "--from", "-"), "<&-", "cannot read standard input: it is closed"),
    "gateway": (("gateway", *POOLS, "--dry-run"), "<&-", "cannot read standard input: it is closed"),
    "prompts": (("decide", "--prompts", "/dev/stdin"), "<&-", "/dev/stdin holds no requests"),
    "a document": (("decide", *fake_flags(), "--json"), ">&-", "standard output is closed"),
}


@pytest.mark.parametrize(("words", "closed", "said"), CLOSED.values(), ids=CLOSED.keys())
def test_a_closed_standard_file_is_said(
    words: tuple[str, ...], closed: str, said: str, tmp_path: Path
) -> None:
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *command(words)]
    done = subprocess.run(
        shell, cwd=tmp_path, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False
    )
    assert (done.returncode in {1, 2}, "Traceback" in done.stderr, said in done.stderr) == (True, False, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("decide", "--config", "/dev/zero", "--dry-run"), "has more than"),
        (("watch", "--config", "/dev/zero"), "has more than"),
        (("lint", "/dev/zero"), "has more than"),
        (("watch", "http://127.0.0.1:1", "--history", "pipe"), "--history must be a file"),
        (("decide", *fake_flags(), "--study", ""), "--study is empty"),
        (("report", "s", "--out="), "--out is empty"),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, tuple) else "",
)
def test_what_has_no_end_or_no_name_is_refused(
    words: tuple[str, ...], said: str, cli: Cli, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    result = cli(*words)
    assert (result.code, said in result.stderr) == (2, True), result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.timeout(30)
def test_a_pipe_is_read_to_its_end_and_not_waited_for_without_one(tmp_path: Path) -> None:
    shell = f"{' '.join(command(['decide', '--config']))} <(echo 'seed = -1') --dry-run"
    done = subprocess.run(["bash", "-c", shell], cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, "--seed takes 0 or more" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    "url",
    [
        f"https://hooks.example.org/{SECRET}\r",
        f"https://hooks.example.org/{SECRET}#x",
        f"ftp://hooks.example.org/{SECRET}",
        f"hooks.example.org/{SECRET}",
        f"https:/hooks.example.org/{SECRET}",
        f"https://hooks.example.org:port/{SECRET}",
    ],
)
def test_an_error_about_a_webhook_names_its_host_alone(url: str, cli: Cli) -> None:
    result = cli("watch", "http://127.0.0.1:1", "--for", "1s", "--webhook", url)
    assert (result.code, SECRET in result.stdout + result.stderr) == (2, False)
    assert "--webhook is not a server's address" in result.stderr


@pytest.mark.parametrize("kind", ["cut", "deep", "a folder", "a pipe", "without an end"])
def test_a_verdict_file_that_is_none_costs_a_judgement_and_no_more(kind: str, cli: Cli) -> None:
    asked = ("decide", *fake_flags(), "--method", "ngram", "--k", 4, "--requests", 2, "--max-tokens", 4)
    cli(*asked, "--segment", "chat", "--launches", 1, "--verify", "off", "--study", "s")
    verdict = Path("s/verdict.json")
    verdict.unlink()
    match kind:
        case "cut":
            verdict.write_text("{")
        case "deep":
            verdict.write_text("[" * 200_000)
        case "a folder":
            verdict.mkdir()
        case "a pipe":
            os.mkfifo(verdict)
        case _:
            verdict.symlink_to("/dev/zero")
    judged = cli("compare", "s")
    assert judged.code in (0, 3, 4, 5), judged.stderr
