from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speclift.bench.ask import Ask
from speclift.bench.study_cost import STREAM_TOKENS_PER_S, StudyCost, study_cost

VLLM_LAUNCH_S = 90.0


def cost(verb: str = "measure", *, nodes: int = 1, **asked: Any) -> StudyCost:
    ordinary = {"engine": "vllm", "model": "org/model", "methods": ("ngram",), "ks": (3,), "requests": 40}
    return study_cost(Ask.of(**{**ordinary, **asked}), verb=verb, nodes=nodes)


def test_every_arm_is_launched_in_every_round() -> None:
    found = cost(launches=4)

    assert found.launches == 4 * 2
    assert found.launch_s == VLLM_LAUNCH_S
    assert found.answers == 4 * 2 * 40


def test_an_open_loop_takes_as_long_as_its_requests_take_to_arrive() -> None:
    found = cost(qps=(2.0, 4.0), launches=1)

    assert found.work_s == pytest.approx(2 * (VLLM_LAUNCH_S + 40 / 2 + 40 / 4))
    assert "tokens/s" not in found.sentence()


def test_a_closed_loop_takes_what_a_named_speed_makes_of_it() -> None:
    found = cost(concurrency=(1, 8), max_tokens=16, launches=1)

    answers_s = 40 * 16 / STREAM_TOKENS_PER_S
    assert found.work_s == pytest.approx(2 * (VLLM_LAUNCH_S + answers_s + answers_s / 8))
    assert "if every stream yields 50 tokens/s" in found.sentence()


def test_nodes_share_the_rounds_and_idle_ones_are_paid_for() -> None:
    alone, three, nine = (cost(launches=3, nodes=nodes) for nodes in (1, 3, 9))

    assert three.wall_s == pytest.approx(alone.wall_s / 3)
    assert three.node_hours == pytest.approx(alone.node_hours)
    assert nine.node_hours == pytest.approx(3 * alone.node_hours)


@settings(max_examples=10)
@given(st.integers(1, 200), st.integers(1, 64), st.integers(1, 6))
def test_more_requests_never_cost_less(requests: int, streams: int, launches: int) -> None:
    fewer, more = (
        cost(requests=count, max_tokens=16, concurrency=(streams,), launches=launches)
        for count in (requests, requests + 1)
    )

    assert math.isfinite(more.node_hours)
    assert more.node_hours >= fewer.node_hours or math.isclose(more.node_hours, fewer.node_hours)
