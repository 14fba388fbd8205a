"""watch on the command line: answers, exit codes, JSON lines, and what is wrong with what was typed."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from live_pages import Served, text_of
from running import Cli, Result, asked, hosted
from simulated import by_streams, quiet_truth
from speclift.core.records import Counters
from written import write_study

PAYING = ("flavour=vllm", "k=4", "acceptance=0.8")
LOSING = ("flavour=vllm", "k=4", "acceptance=0.1")
QUICK = ("--once", "--interval", "0.4s", "--json")


def documents(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.slow
class TestAnswers:
    @pytest.mark.parametrize(("truth", "verdict", "code"), [(PAYING, "pays", 0), (LOSING, "does-not-pay", 4)])
    def test_a_server_with_asked(self, cli: Cli, truth: tuple[str, ...], verdict: str, code: int) -> None:
        with hosted(*truth) as url, asked(url):
            result = cli("watch", url, *QUICK, "--break-even", 2)

        (document,) = documents(result)
        assert (document["verdict"], result.code) == (verdict, code)
        assert (document["engine"], document["url"]) == ("vllm", url)
        assert document["break_even"] == {
            "accepted_length": 2.0,
            "source": "given",
            "low": 2.0,
            "high": 2.0,
            "running": document["break_even"]["running"],
        }
        length = document["accepted_length"]
        assert length["low"] < length["value"] < length["high"]
        assert len(document["per_position"]) == 4
        assert document["answer"]["sentence"].startswith("Speculation")

    def test_llamacpp_too(self, cli: Cli) -> None:
        with hosted("flavour=llamacpp", "k=4", "acceptance=0.8") as url, asked(url):
            result = cli("watch", url, *QUICK, "--break-even", 1.5)
        (document,) = documents(result)
        assert (document["engine"], document["verdict"], result.code) == ("llamacpp", "pays", 0)

    def test_no_asked(self, cli: Cli) -> None:
        with hosted(*PAYING) as url:
            result = cli("watch", url, *QUICK, "--break-even", 2)
        assert (documents(result)[0]["verdict"], result.code) == ("no-traffic", 5)

    def test_nobody_there(self, cli: Cli) -> None:
        result = cli("watch", "http://127.0.0.1:9", *QUICK)
        (document,) = documents(result)
        assert result.code == 1
        assert document["events"] == ["unreachable"]
        assert "127.0.0.1:9" in document["unreachable"]

    def test_the_exit_code_is_the_worst_servers(self, cli: Cli) -> None:
        with hosted(*PAYING) as one, hosted(*PAYING) as other, asked(one):
            unsure = cli("watch", one, other, *QUICK, "--break-even", 2)
            gone = cli("watch", one, "http://127.0.0.1:9", *QUICK, "--break-even", 2)
        assert {document["verdict"] for document in documents(unsure)} == {"pays", "no-traffic"}
        assert (unsure.code, gone.code) == (5, 1)

    def test_for_a_time_there_is_a_document_for_every_interval(self, cli: Cli) -> None:
        with hosted(*PAYING) as url, asked(url):
            result = cli("watch", url, "--interval", "0.2s", "--window", "1s", "--for", "2s", "--json")
        # Fewer where the machine is busy.
        assert 2 <= len(documents(result)) <= 10

    def test_against_what_a_study_measured(self, cli: Cli, tmp_path: Path) -> None:
        counters = Counters(values={"vllm:generation_tokens_total": 1.0})
        write_study(tmp_path / "s", quiet_truth(by_streams({1: 1.7, 4: 1.4, 16: 0.8})), counters=counters)
        with hosted(*LOSING) as url, asked(url):
            result = cli("watch", url, *QUICK, "--study", "s")
        (document,) = documents(result)
        assert document["break_even"]["source"] == "study"
        assert document["break_even"]["accepted_length"] > 1
        again = document["answer"]["next"]
        assert (document["verdict"] == "does-not-pay") == (again is not None)

    def test_words_where_there_is_no_terminal(self, cli: Cli) -> None:
        with hosted(*PAYING) as url, asked(url):
            result = cli("watch", url, "--once", "--interval", "0.4s", "--break-even", 2)
        assert result.stderr == ""
        assert "Speculation pays" in result.stdout
        assert "break-even 2.00 (given)" in result.stdout


class TestOnePage:
    def test_since_its_start(self, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
        page = Served().interval(accepted=2.2, requests=2000)
        pasted(monkeypatch, text_of(page))
        result = cli("watch", "-", "--break-even", 2, "--json")

        assert (result.code, result.document["verdict"]) == (0, "pays")
        assert result.document["accepted_length"]["value"] == pytest.approx(3.2, rel=0.01)

    @pytest.mark.parametrize("text", ["", "<html>no</html>", "node_load1 0.5\n", "\x00\xff" * 100])
    def test_what_is_no_page_is_said(self, cli: Cli, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        pasted(monkeypatch, text)
        result = cli("watch", "-")
        assert result.code == 1
        assert "metrics" in result.stderr

    def test_not_beside_an_address(self, cli: Cli) -> None:
        assert cli("watch", "-", "http://127.0.0.1:9").code == 2


class TestUsage:
    @pytest.mark.parametrize(
        ("flags", "said"),
        [
            (("--interval", "0s"), "--interval"),
            (("--interval", "soon"), "--interval"),
            (("--interval", "1h", "--window", "10m"), "--window"),
            (("--break-even", "0.5"), "--break-even"),
            (("--break-even", "nan"), "--break-even"),
            (("--break-even", "2", "--study", "x"), "--study"),
            (("--once", "--for", "1m"), "--for"),
            (("--api-key-env", "NOT_SET_ANYWHERE"), "NOT_SET_ANYWHERE"),
        ],
    )
    def test_a_wrong_value_is_named(self, cli: Cli, flags: tuple[str, ...], said: str) -> None:
        result = cli("watch", "http://127.0.0.1:9", *flags)
        assert result.code == 2
        assert said in result.stderr

    @pytest.mark.parametrize("url", ["ftp://a", "not an address", "http://"])
    def test_no_address(self, cli: Cli, url: str) -> None:
        assert cli("watch", url, "--once").code == 2

    def test_a_study_that_is_not_there(self, cli: Cli, tmp_path: Path) -> None:
        result = cli("watch", "http://127.0.0.1:9", "--once", "--study", tmp_path / "none")
        assert result.code == 1
        assert "none" in result.stderr


def pasted(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    raw = io.BytesIO(text.encode("utf-8", "replace"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(raw))
