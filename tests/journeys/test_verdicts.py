"""What compare says of a study, from records to the sentence: each verdict, its exit code, its rules."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from changes import FORCED, WITHOUT_COUNTS, failing, gate, only, said, slower

from recorded import recorded_study
from running import Cli


class Judged(NamedTuple):
    """`rules` are those that fail or warn beside the two that nearly every study has."""

    name: str
    study: str
    change: str
    flags: str
    verdict: str
    sentence: str
    rules: str = ""


THREE = "arm = 'arm' AND request_id IN ('p0', 'p1', 'p2') AND round = 0 AND load LIKE '%1%'"
CODES = {"ship": 0, "ship-on-conditions": 3, "do-not-ship": 4, "inconclusive": 5, "output-changed": 6}
# A study of 24 prompts leaves these open.
ALWAYS = {"lossless:warn", "tail:warn"}
CASES = [
    Judged(
        "faster",
        "faster",
        "",
        "",
        "ship",
        "Switch on arm: answers come 1.61x faster (95 % sure: 1.59 to 1.63).",
    ),
    Judged("faster per token", "faster", "", "--metric tpot", "ship", "tokens come 1.61x faster"),
    Judged("faster in all", "faster", "", "--metric throughput", "ship", "Switch on arm"),
    Judged("a third faster", "faster", slower(1.2), "", "ship", "answers come 1.36x faster"),
    Judged(
        "slower",
        "faster",
        slower(2),
        "",
        "do-not-ship",
        "Leave it off: answers come at 0.84x the speed (95 % sure: 0.83 to 0.85).",
        "min-speedup:fail no-part-loses:fail",
    ),
    Judged(
        "at the bar",
        "faster",
        slower(1.25),
        "",
        "inconclusive",
        "Faster for certain, but not yet shown to be 1.30x: arm lies between 1.29x and 1.32x",
        "min-speedup:fail",
    ),
    Judged(
        "under the user's bar",
        "faster",
        "",
        "--min-speedup 50",
        "do-not-ship",
        "Leave it off: at most 1.63x of the 50.00x asked for.",
        "min-speedup:fail",
    ),
    Judged(
        "one segment",
        "faster",
        slower(2, "segment <> 'copy'"),
        "",
        "ship-on-conditions",
        "Switch on arm only for copy:",
    ),
    Judged(
        "one load",
        "faster",
        slower(2, "load LIKE '%4%'"),
        "",
        "ship-on-conditions",
        "Switch on arm only for at most 1 request at once: answers come 1.61x faster",
    ),
    Judged(
        "three loads",
        "by-load",
        "",
        "",
        "ship-on-conditions",
        "Switch on arm only for at most 4 requests at once: answers come 1.69x faster (95 % sure: 1.66 to 1.72).",
    ),
    Judged(
        "cool requests",
        "by-temperature",
        "",
        "",
        "ship-on-conditions",
        "Switch on arm only for temperature up to 0: answers come 1.79x faster",
    ),
    Judged("a slow tail", "slow-tail", "", "", "ship-on-conditions", "Switch on arm only for copy, code:"),
    Judged(
        "slow requests everywhere",
        "slow-tail",
        slower(9, "id % 7 = 0"),
        "",
        "inconclusive",
        "Do not switch it on yet: arm lies between 0.81x and 1.60x",
        "min-speedup:fail no-part-loses:fail tail:fail",
    ),
    Judged(
        "the better of two",
        "two-arms",
        "",
        "",
        "ship",
        "Switch on other: answers come 1.51x faster",
        "acceptance-low:warn",
    ),
    Judged(
        "two arms, the other broken",
        "two-arms",
        "UPDATE launches SET failure = 'ended with code 137' WHERE arm = 'other'",
        "",
        "ship",
        "Switch on arm: answers come",
    ),
    Judged("requests at a rate", "open-loop", "", "", "ship", "Switch on arm: tokens come 1.51x faster"),
    Judged("prompts sent again", "repeated", "", "", "ship", "Switch on arm: answers come 1.69x faster"),
    Judged(
        "a limit missed by both",
        "faster",
        "",
        "--slo e2e_p95=1ms",
        "ship",
        "Switch on arm",
        "slo:warn",
    ),
    Judged("a limit kept", "faster", "", "--slo e2e_p95=1s,ttft_p50=1s", "ship", "Switch on arm"),
    Judged(
        "a limit missed by the arm alone",
        "faster",
        slower(1.05),
        "--slo ttft_p95=0.0411s,tpot_p50=1ms",
        "ship",
        "Switch on arm",
        "slo:warn",
    ),
    Judged(
        "a percentile that nobody knows",
        "faster",
        "",
        "--slo e2e_p99=1s",
        "inconclusive",
        "Not for all traffic yet",
        "slo:fail",
    ),
    Judged("no counts of drafts", "faster", WITHOUT_COUNTS, "", "ship", "Switch on arm", "no-drafts:warn"),
    Judged(
        "no counts and little gain",
        "faster",
        f"{WITHOUT_COUNTS}; {slower(1.55)}",
        "--min-speedup 1.01",
        "inconclusive",
        "",
        "no-drafts:fail",
    ),
    Judged(
        "no draft accepted",
        "faster",
        "UPDATE records SET accepted = 0",
        "",
        "inconclusive",
        "but no draft token was seen to be accepted",
        "no-drafts:fail acceptance-low:warn break-even:warn",
    ),
    Judged(
        "requests that fail",
        "faster",
        failing("arm = 'arm' AND id % 10 = 0", "429: slow down"),
        "",
        "inconclusive",
        "but too many requests could not be compared",
        "left-out:fail failures:fail",
    ),
    Judged(
        "requests that fail more often",
        "faster",
        f"{failing('id = 1', '500')}; {failing(THREE, '500')}",
        "",
        "ship-on-conditions",
        "Switch on arm only for",
    ),
    Judged(
        "few prompts",
        "faster",
        only("request_id IN ('p0', 'p1', 'p2', 'p3')"),
        "",
        "inconclusive",
        "but too few prompts were asked",
        "few-prompts:fail",
    ),
    Judged(
        "a segment of loops",
        "faster",
        said("la " * 40, "segment = 'chat'"),
        "",
        "ship-on-conditions",
        "Switch on arm only for copy, code",
    ),
    Judged(
        "nothing but loops",
        "faster",
        said("la " * 40, "1"),
        "",
        "inconclusive",
        "",
        "degenerate-output:fail",
    ),
    Judged(
        "other answers at temperature 0",
        "by-temperature",
        said("other words", "arm = 'arm' AND temperature = 0"),
        "",
        "output-changed",
        "Leave it off: arm changes what the model answers.",
        "min-speedup:fail tail:fail lossless:fail",
    ),
    Judged(
        "a gate that failed",
        "faster",
        gate("fail"),
        "",
        "output-changed",
        "arm changes what the model answers",
        "lossless:fail",
    ),
    Judged("a gate that passed", "faster", gate("pass"), "", "ship", "Switch on arm"),
    Judged(
        "a full gate without proof",
        "faster",
        gate("inconclusive", mode="full"),
        "",
        "inconclusive",
        "Leave it off for now: the answers were not proven to stay the same.",
    ),
    Judged(
        "no record of the arm",
        "faster",
        "DELETE FROM records WHERE arm = 'arm'",
        "",
        "inconclusive",
        "Nothing to switch on: no server with speculation was measured.",
        "evidence:warn",
    ),
    Judged(
        "an arm that did not run",
        "faster",
        "UPDATE launches SET failure = 'ended with code 137' WHERE arm = 'arm'",
        "",
        "inconclusive",
        "Nothing to switch on: arm did not run.",
        "evidence:warn",
    ),
    Judged(
        "drafts forced to be accepted",
        "faster",
        FORCED,
        "",
        "output-changed",
        "changes what the model answers",
        "lossy-method:fail lossless:fail",
    ),
    Judged(
        "short answers",
        "faster",
        "UPDATE records SET output_tokens = 20",
        "",
        "ship",
        "Switch on arm",
    ),
    Judged(
        "slow first tokens",
        "faster",
        "UPDATE records SET first_token_s = first_token_s + 2, last_token_s = last_token_s + 2, end_s = end_s + 2",
        "",
        "do-not-ship",
        "Leave it off",
        "min-speedup:fail ttft-bound:warn",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_study_is_judged(case: Judged, cli: Cli, tmp_path: Path) -> None:
    recorded_study(case.study, tmp_path, case.change)
    result = cli("compare", case.study, *case.flags.split(), "--json")
    document = result.document
    assert (document["verdict"], result.code) == (case.verdict, CODES[case.verdict])
    assert case.sentence in document["answer"]["sentence"]
    rules = {f"{r['rule']}:{r['level']}" for r in document["reasons"] if r["level"] in ("fail", "warn")}
    assert rules - ALWAYS == set(case.rules.split()) - ALWAYS


@pytest.mark.parametrize("arm", ["baseline", "%"])
def test_without_a_baseline_there_is_nothing_to_compare(arm: str, cli: Cli, tmp_path: Path) -> None:
    recorded_study("faster", tmp_path, f"DELETE FROM records WHERE arm LIKE '{arm}'")
    result = cli("compare", "faster")
    assert (result.code, result.stdout) == (1, "")
    assert "has no successful baseline request" in result.stderr
    assert "--resume" in result.stderr
