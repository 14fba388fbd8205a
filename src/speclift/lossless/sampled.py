"""Above temperature 0: same seed and same text where the engine keeps it, else the target's own probabilities.

Too few tokens for the deviation that was asked for is inconclusive, and says how many it would take.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from speclift.core.results import is_complete
from speclift.lossless.answers import Compared, hazard, tokens_for_rate
from speclift.lossless.calibration import (
    LIKELIHOOD,
    TokenScore,
    calibrate,
    detectable,
    foreign_tokens,
    tokens_needed,
)
from speclift.lossless.gate import Hazard, Result, Sampled, SetTest, TextTest, few_prompts

# All sampled tests together; with the rates of greedy.py the gate's false alarms stay under 2 %.
SAMPLED_ALPHA = 0.01
POWER = 0.9


def planned_tokens(detect: float) -> int:
    """Before anything is known of the target: the worst variance, split over all tests."""
    return tokens_needed(detect, alpha=_alpha_each(), power=POWER)


def _alpha_each(tests: int = 6) -> float:
    return SAMPLED_ALPHA / tests


def is_identical(pairs: Sequence[Compared], *, detect: float) -> bool:
    """The same seed gives the same answer so often that the per-token deviation is bounded by `detect`.

    Tokens that agree under one seed are a coupling: the laws differ by at most the chance of parting.
    """
    return bool(pairs) and hazard(pairs).upper() <= detect


def judge_identity(pairs: Sequence[Compared], *, detect: float) -> Sampled:
    apart = hazard(pairs)
    return Sampled(
        result=Result.PASS,
        message=f"same seed, same text: {apart.events} of {len(pairs)} answers differ in {apart.tokens:.0f} tokens, "
        f"so probabilities deviate by less than {apart.upper():.2%} (95 % confidence)",
        method="same-seed",
        detect=detect,
        tokens=int(apart.tokens),
        tokens_needed=tokens_for_rate(detect),
        detectable=apart.upper(),
        identity=apart,
    )


def judge_scores(
    scores: Sequence[TokenScore],
    control: Sequence[TokenScore],
    *,
    detect: float,
    identity: Hazard | None = None,
    text_tests: tuple[TextTest, ...] = (),
) -> Sampled:
    return judge_tests(
        calibrate(scores),
        calibrate(control) if control else (),
        detect=detect,
        foreign_p=foreign_tokens(scores, control=control),
        control_foreign_p=foreign_tokens(control) if control else 1.0,
        identity=identity,
        text_tests=text_tests,
    )


def judge_tests(
    tests: Sequence[SetTest],
    control_tests: Sequence[SetTest],
    *,
    detect: float,
    foreign_p: float,
    control_foreign_p: float = 1.0,
    identity: Hazard | None = None,
    text_tests: tuple[TextTest, ...] = (),
) -> Sampled:
    alpha = _alpha_each()
    tokens = max((test.tokens for test in tests), default=0)
    variance = _variance_per_token(tests)
    reach = detectable(tokens, alpha=alpha, power=POWER, variance=variance)
    # A target that is sure of every token has no variance to speak of; to exclude a share of wrong ones still takes as
    # many tokens as it does at temperature 0.
    needed = max(tokens_for_rate(detect), tokens_needed(detect, alpha=alpha, power=POWER, variance=variance))
    p_values = {test.name: _p_against(test, control_tests, alpha=alpha) for test in tests if test.is_usable}
    if control_foreign_p >= alpha:
        p_values["foreign tokens"] = foreign_p
    lowest = min(p_values, key=lambda name: p_values[name], default=None)
    if lowest is not None and p_values[lowest] < alpha:
        result, message = Result.FAIL, _failed_test(lowest, p_values[lowest], tests, tokens)
    elif doubt := _doubt(tests, control_tests, tokens=tokens, needed=needed, detect=detect):
        result, message = Result.INCONCLUSIVE, doubt
    else:
        result = Result.PASS
        message = (
            f"{tokens} tokens follow the target's probabilities; a deviation of {reach:.3f} would be detected"
        )
    return Sampled(
        result=result,
        message=message,
        method="calibration",
        detect=detect,
        tokens=tokens,
        tokens_needed=needed,
        detectable=reach if math.isfinite(reach) else None,
        identity=identity,
        tests=tuple(tests),
        control_tests=tuple(control_tests),
        foreign_p=foreign_p,
        text_tests=text_tests,
    )


def _variance_per_token(tests: Sequence[SetTest]) -> float:
    """The variance of the test that tells least; that of even odds, the largest, where nothing was scored."""
    scored = [test for test in tests if test.tokens]
    tops = [test for test in scored if test.is_usable and test.name != LIKELIHOOD]
    return max((test.variance / test.tokens for test in tops or scored), default=0.25)


def _doubt(
    tests: Sequence[SetTest], control_tests: Sequence[SetTest], *, tokens: int, needed: int, detect: float
) -> str:
    """Why no failed test is not a pass yet; empty where it is."""
    if tokens < needed:
        return f"{tokens} tokens scored, {needed} needed to detect a deviation of {detect:g} with {POWER:.0%} power"
    if not any(test.is_usable for test in tests):
        return f"the target is so sure of all {tokens} tokens that its probabilities cannot be tested"
    if not any(test.is_usable for test in control_tests):
        return (
            f"{tokens} tokens follow the target's probabilities, but too few of the baseline's own were scored for a "
            "control"
        )
    return ""


def if_complete(judged: Sampled, *, prompts: int, asked: int, answered: int) -> Sampled:
    """The same, or no pass: where prompts are too few, or where the arm left out answers that the baseline gave, what
    was seen does not stand for the rest. `asked` are the requests that the baseline answered."""
    why = few_prompts(prompts)
    if not is_complete(asked=asked, used=answered):
        why = f"{asked - answered} of {asked} requests that the baseline answered got no answer"
    if judged.result is not Result.PASS or not why:
        return judged
    return replace(judged, result=Result.INCONCLUSIVE, message=f"{why}; the rest: {judged.message}")


def _p_against(test: SetTest, control: Sequence[SetTest], *, alpha: float) -> float:
    """The p-value of a test. If the baseline itself misses its scores (a setting of the server that scoring does not
    see), only the difference between the two counts."""
    held = next((other for other in control if other.name == test.name), None)
    if held is None or held.p_value >= alpha or not held.tokens:
        return test.p_value
    spread = test.variance / test.tokens**2 + held.variance / held.tokens**2
    return (
        float(math.erfc(abs(test.deviation - held.deviation) / math.sqrt(2 * spread))) if spread > 0 else 1.0
    )


def _failed_test(name: str, p_value: float, tests: Sequence[SetTest], tokens: int) -> str:
    failed = next((test for test in tests if test.name == name), None)
    if failed is None:
        return f"some of {tokens} tokens are impossible for the target (p {_p_text(p_value)})"
    if name == LIKELIHOOD:
        return (
            f"log-likelihood under the target is {failed.observed / failed.tokens:.2f} nats per token, expected "
            f"{failed.expected / failed.tokens:.2f} (p {_p_text(p_value)}, {failed.tokens} tokens)"
        )
    return (
        f"{name}: sampled {failed.observed / failed.tokens:.1%} of the time, expected "
        f"{failed.expected / failed.tokens:.1%} (p {_p_text(p_value)}, {failed.tokens} tokens)"
    )


def judge_texts(
    tests: tuple[TextTest, ...], *, detect: float, identity: Hazard | None, why_not_scored: str
) -> Sampled:
    """No probabilities to be had: texts can show a gross fault, never the absence of a small one."""
    failed = [test for test in tests if test.p_value < SAMPLED_ALPHA / max(1, len(tests))]
    if failed:
        test = min(failed, key=lambda each: each.p_value)
        result = Result.FAIL
        message = f"{test.name}: {test.arm:.2f}, baseline {test.baseline:.2f} (p = {test.p_value:.1g})"
    else:
        result = Result.INCONCLUSIVE
        seen = (
            f"no large difference in {tests[0].pairs} pairs of texts" if tests else "too few texts to compare"
        )
        message = f"{seen}; {why_not_scored}"
    return Sampled(
        result=result,
        message=message,
        method="texts",
        detect=detect,
        tokens=0,
        tokens_needed=planned_tokens(detect),
        detectable=None,
        identity=identity,
        text_tests=tests,
    )


def _p_text(p_value: float) -> str:
    return "< 1e-15" if p_value < 1e-15 else f"= {p_value:.1g}"
