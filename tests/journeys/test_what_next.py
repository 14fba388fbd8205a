"""Where a study settles nothing the answer ends in a command that would: the user's own, with what is lacking."""

from __future__ import annotations

from pathlib import Path

import pytest
from changes import only, slower, typed_as

from recorded import recorded_study
from running import Cli

MINE = ("decide", "--engine", "fake", "--prompts", "p.jsonl")
AT_THE_BAR = slower(1.25)
FOUR = "request_id IN ('p0', 'p1', 'p2', 'p3')"
ONE_LAUNCH_OF_FOUR = (
    f"{only(FOUR)}; DELETE FROM records WHERE round > 0; "
    f"DELETE FROM requests WHERE NOT ({FOUR.replace('request_id', 'id')})"
    """; UPDATE meta SET value = replace(value, '"rounds":3', '"rounds":1') WHERE key = 'plan'"""
)
CASES = {
    "more of both": (
        "faster",
        f"{typed_as(*MINE)}; {AT_THE_BAR}",
        "",
        (*MINE, "--requests 129 --launches 17"),
        4555.7,
    ),
    "what was written stays where it is": (
        "faster",
        f"{typed_as(*MINE, '--out', 'r.html', '--study', 's')}; {AT_THE_BAR}",
        "",
        (*MINE, "--requests 129 --launches 17"),
        4555.7,
    ),
    "a budget that is long enough": (
        "faster",
        f"{typed_as(*MINE, '--budget', '5m')}; {AT_THE_BAR}",
        "",
        (*MINE, "--requests 129 --launches 17 --budget 114m"),
        4555.7,
    ),
    "another bar and metric": (
        "faster",
        f"{typed_as(*MINE)}; {AT_THE_BAR}",
        "--metric tpot --min-speedup 1.28",
        (*MINE, "--min-speedup 1.28 --metric tpot --requests 167 --launches 21"),
        7283.2,
    ),
    "more launches": (
        "slow-tail",
        f"{typed_as(*MINE)}; {slower(9, 'id % 7 = 0')}",
        "",
        (*MINE, "--requests 102 --launches 4"),
        483.3,
    ),
    "one segment": (
        "faster",
        f"{typed_as(*MINE)}; {ONE_LAUNCH_OF_FOUR}",
        "",
        (*MINE, "--segment copy --requests 8 --launches 1"),
        17.4,
    ),
    "traffic that a quick look chose": (
        "faster",
        f"{ONE_LAUNCH_OF_FOUR}; UPDATE records SET segment = 'chat'; UPDATE requests SET body = "
        "replace(replace(body, 'copy', 'chat'), 'code', 'chat')",
        "",
        ("decide --engine fake --segment chat --max-tokens 64 --requests 24 --launches 1",),
        51.4,
    ),
    "requests for a percentile": (
        "faster",
        typed_as(*MINE),
        "--slo e2e_p99=1s",
        (*MINE, "--requests 100 --launches 3"),
        623.4,
    ),
    "a pasted line": (
        "faster",
        f"{typed_as('decide', '--prompts', 'p.jsonl', '--', 'vllm', 'serve', 'm')}; {AT_THE_BAR}",
        "",
        ("decide", "--prompts", "p.jsonl", "--requests 129 --launches 17", "--", "vllm", "serve", "m"),
        4555.7,
    ),
    "what was measured is decided": (
        "faster",
        f"{typed_as('measure', *MINE[1:])}; {AT_THE_BAR}",
        "",
        (*MINE, "--requests 129 --launches 17"),
        4555.7,
    ),
    "what was cut short": (
        "faster",
        f"{typed_as(*MINE)}; {only(FOUR)}",
        "",
        ("decide", "--resume", "--study", "faster"),
        128.5,
    ),
    "no prompts to be had": ("faster", AT_THE_BAR, "", (), 0.0),
    "hopeless": ("faster", f"{typed_as(*MINE)}; {slower(3)}", "", (), 0.0),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_users_own_command_with_what_is_lacking(name: str, cli: Cli, tmp_path: Path) -> None:
    study, change, flags, words, seconds = CASES[name]
    recorded_study(study, tmp_path, change)
    following = cli("compare", study, *flags.split(), "--json").document["answer"]["next"]
    if not words:
        assert following is None
        return
    assert following["command"] == " ".join(("speclift", *words))
    assert following["seconds"] == pytest.approx(seconds, abs=0.1)


def test_what_ships_is_followed_by_its_server(cli: Cli, tmp_path: Path) -> None:
    recorded_study("faster", tmp_path)
    following = cli("compare", "faster", "--json").document["answer"]["next"]
    assert following["command"].endswith("--truth k=4")
    assert following["seconds"] == 1.0
