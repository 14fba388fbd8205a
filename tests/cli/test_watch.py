"""watch on the command line: answers, exit codes, JSON lines, and what is wrong with what was typed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from running import Cli, Result, asked, hosted

PAYING = ("flavour=vllm", "k=4", "acceptance=0.8")
QUICK = ("--once", "--interval", "0.4s", "--json")


def documents(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.slow
class TestAnswers:
    def test_llamacpp_too(self, cli: Cli) -> None:
        with hosted("flavour=llamacpp", "k=4", "acceptance=0.8") as url, asked(url):
            result = cli("watch", url, *QUICK, "--break-even", 1.5)
        (document,) = documents(result)
        assert (document["engine"], document["verdict"], result.code) == ("llamacpp", "pays", 0)

    def test_for_a_time_there_is_a_document_for_every_interval(self, cli: Cli) -> None:
        with hosted(*PAYING) as url, asked(url):
            result = cli("watch", url, "--interval", "0.2s", "--window", "1s", "--for", "2s", "--json")
        # Fewer where the machine is busy.
        assert 2 <= len(documents(result)) <= 10


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
