"""What decide sees in the answers that it records anyway, and what it leaves alone."""

from __future__ import annotations

import json
from random import Random

import pytest

from speclift.core.arm import BASELINE, Arm
from speclift.core.records import Outcome, Phase, Place, Record
from speclift.core.results import Finding, Level
from speclift.core.speculation import NGram
from speclift.core.traffic import Concurrency, Request
from speclift.lossless.gate import Result
from speclift.lossless.recorded import calls_misfit, gate_from_records

ARM = Arm(name="ngram", speculation=NGram(k=4))
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "find", "parameters": SCHEMA}}
AS_JSON = json.dumps(
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}
)
ANY_JSON = json.dumps({"response_format": {"type": "json_object"}})
LOOSE_TOOL = json.dumps({"tools": [TOOL], "tool_choice": "auto"})
STRICT = {**TOOL["function"], "strict": True}  # type: ignore[dict-item]
WITH_TOOL = json.dumps({"tools": [{**TOOL, "function": STRICT}], "tool_choice": "auto"})
GOOD = '{"city": "Basel"}'


def record(
    arm: str, request: str, text: str, *, finish: str = "stop", outcome: Outcome = Outcome.OK
) -> Record:
    place = Place(
        arm=arm,
        launch=1,
        round=0,
        block=0,
        load=Concurrency(streams=1),
        request_id=request,
        segment="s",
        temperature=0.0,
        phase=Phase.MEASURED,
    )
    return Record(
        place=place,
        outcome=outcome,
        intended_s=0.0,
        sent_s=0.0,
        end_s=1.0,
        text=text,
        output_tokens=20,
        finish_reason=finish,
    )


def seen(
    own: list[str],
    theirs: list[str],
    *,
    answer_format: str | None = None,
    prompt: str = "prompt",
    finish: str = "stop",
    limit: int = 64,
) -> tuple[Result, list[Finding]]:
    """The findings of a study in which request i was answered so by either."""
    requests = [
        Request(id=f"r{i}", prompt=f"{prompt} {i}", answer_format=answer_format, max_tokens=limit)
        for i in range(len(own))
    ]
    records = [
        record(arm, f"r{i}", text, finish=finish)
        for arm, texts in ((BASELINE, theirs), ("ngram", own))
        for i, text in enumerate(texts)
    ]
    (arm,) = gate_from_records(records, [ARM], requests).arms
    return arm.result, [finding for finding in arm.findings if finding.check.endswith("-recorded")]


def checks(*args: list[str], **more: str) -> list[str]:
    return [finding.check for finding in seen(*args, **more)[1]]  # type: ignore[arg-type]


FINE = ["A quiet day."] * 12
LEAKY = ["A quiet day.<|im_end|>"] * 2 + FINE[2:]


def test_tokens_of_the_chat_template_that_the_baseline_does_not_show_fail_the_gate() -> None:
    result, (finding,) = seen(LEAKY, FINE)

    assert result is Result.FAIL
    assert (finding.check, finding.level) == ("special-token-recorded", Level.FAIL)
    assert "2 of 12" in finding.message
    assert "0 of 12" in finding.message
    assert "verify --soak" in finding.next_step


def test_one_answer_alone_is_chance() -> None:
    assert checks([LEAKY[0], *FINE[1:]], FINE) == []


def test_what_the_baseline_does_too_is_not_the_arms() -> None:
    assert checks(LEAKY, LEAKY) == []


def test_a_token_that_the_users_prompt_holds_may_be_said() -> None:
    assert checks(LEAKY, FINE, prompt="What is <|im_end|>?") == []
    # Asked about one token, a model writes the others as well.
    assert checks(LEAKY, FINE, prompt="What is <|im_start|>?") == []


def test_json_that_was_asked_for_has_to_be_json() -> None:
    broken = [GOOD[:-1]] * 3 + [GOOD] * 9

    assert checks(broken, [GOOD] * 12, answer_format=AS_JSON) == ["invalid-json-recorded"]
    assert checks(broken, [GOOD] * 12, answer_format=ANY_JSON) == ["invalid-json-recorded"]
    assert checks(broken, [GOOD] * 12) == []
    assert checks(broken, [GOOD] * 12, answer_format=AS_JSON, finish="length") == []


@pytest.mark.parametrize("stop", ["day", ["night", "day"]])
def test_text_behind_a_stop_string_fails_the_gate(stop: str | list[str]) -> None:
    asked = json.dumps({"stop": stop})
    stopped = ["A quiet "] * 12

    assert checks(["A quiet day."] * 3 + stopped[3:], stopped, answer_format=asked) == [
        "text-after-stop-recorded"
    ]
    assert checks(stopped, stopped, answer_format=asked) == []
    # What a server says on both sides is its way.
    assert checks(FINE, FINE, answer_format=asked) == []


def test_json_that_a_stop_string_ended_need_not_be_whole() -> None:
    asked = json.dumps({**json.loads(AS_JSON), "stop": ["Basel"]})

    assert checks(['{"city": "'] * 12, [GOOD.replace("Basel", "Bern")] * 12, answer_format=asked) == []


def test_arguments_that_nobody_promised_have_to_be_wrong_more_often_than_the_baselines() -> None:
    """A model may write wrong ones by itself where the tool is not strict."""
    good = [f"find{GOOD}"] * 60

    def found(own: int, theirs: int) -> list[str]:
        wrong = ["find{}"] * 60
        texts = (wrong[:own] + good[own:], wrong[:theirs] + good[theirs:])
        return checks(*texts, answer_format=LOOSE_TOOL, finish="tool_calls")

    assert found(3, 0) == []
    assert found(20, 0) == ["tool-arguments-recorded"]
    assert found(40, 38) == []


def test_a_model_that_writes_wrong_arguments_by_itself_raises_no_alarm() -> None:
    """One in fifty on both servers, in 300 studies of 60 prompts: two and none of them were once taken for a fault."""
    random = Random(5)
    good, wrong = f"find{GOOD}", "find{}"

    def answers() -> list[str]:
        return [wrong if random.random() < 0.02 else good for _ in range(60)]

    alarms = [checks(answers(), answers(), answer_format=LOOSE_TOOL, finish="tool_calls") for _ in range(300)]
    assert sum(map(bool, alarms)) <= 1


@pytest.mark.parametrize(
    ("text", "is_fine"),
    [
        (f"find{GOOD}", True),
        (f"I look.\nfind{GOOD}", True),
        (f"find{GOOD}find{GOOD}", True),
        (f"find{GOOD}and", False),
        ("find{", False),
        ("nothing", False),
        ("find" + "{" * 5000, False),
    ],
)
def test_calls_are_read_as_records_hold_them(text: str, is_fine: bool) -> None:
    assert (calls_misfit(text, {"find": json.dumps(SCHEMA)}) == "") is is_fine


@pytest.mark.parametrize(
    ("text", "evidence"),
    [
        (f"find{GOOD}find{{", ""),
        (f"find{GOOD}fi", ""),
        (f"find{GOOD}", ""),
        ("find{}find{", "find: city is missing"),
        ("find{", None),
        ("I look", None),
    ],
)
def test_of_a_text_that_the_limit_cut_only_whole_calls_are_judged(text: str, evidence: str | None) -> None:
    assert calls_misfit(text, {"find": json.dumps(SCHEMA)}, was_cut=True) == evidence


def test_calls_that_the_limit_cut_are_nobodys_fault() -> None:
    """vLLM says tool_calls of them: more of one arm's may end there than of the other's."""
    good, cut = [f"find{GOOD}"] * 12, ['find{"city'] * 6 + [f"find{GOOD}"] * 6
    limit = record(BASELINE, "r0", "").output_tokens
    assert limit is not None

    found = [
        [
            finding.check
            for finding in seen(cut, good, answer_format=WITH_TOOL, finish="tool_calls", limit=n)[1]
        ]
        for n in (limit, limit + 1)
    ]
    assert found == [[], ["tool-arguments-recorded"]]


def test_the_same_prompt_again_counts_once() -> None:
    requests = [Request(id=f"r{i}", prompt="the same") for i in range(12)]
    records = [record(arm, request.id, text) for request, text in zip(requests, LEAKY, strict=True)
               for arm, text in ((BASELINE, "Fine."), ("ngram", text))]  # fmt: skip
    (arm,) = gate_from_records(records, [ARM], requests).arms

    assert [finding for finding in arm.findings if finding.check.endswith("-recorded")] == []
