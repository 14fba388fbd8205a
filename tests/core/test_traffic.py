from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samples import request
from speclift.core.document import plain, read_json
from speclift.core.errors import UsageError
from speclift.core.traffic import (
    Concurrency,
    Load,
    Message,
    Rate,
    Request,
    Workload,
)

loads = st.one_of(
    st.builds(Concurrency, streams=st.integers(1, 10_000)),
    st.builds(
        Rate,
        per_s=st.floats(min_value=1e-6, max_value=1e6),
        arrivals=st.sampled_from(["poisson", "constant", "replay"]),
    ),
)


class TestLoads:
    @given(loads)
    def test_come_back_unchanged_through_json(self, load: Load) -> None:
        assert read_json(Load, json.dumps(plain(load))) == load

    @pytest.mark.parametrize(
        ("load", "document", "label"),
        [
            (Concurrency(streams=8), {"concurrency": 8}, "c=8"),
            (Rate(per_s=2.5), {"qps": 2.5}, "2.5 req/s"),
            (Rate(per_s=4, arrivals="constant"), {"qps": 4, "arrivals": "constant"}, "4 req/s"),
        ],
    )
    def test_have_one_form_in_documents_and_one_in_tables(
        self, load: Load, document: dict[str, object], label: str
    ) -> None:
        assert plain(load) == document
        assert load.label == label

    @pytest.mark.parametrize("streams", [0, -1])
    def test_concurrency_starts_at_one(self, streams: int) -> None:
        with pytest.raises(UsageError, match=f"concurrency must be at least 1, saw {streams}"):
            Concurrency(streams=streams)

    @pytest.mark.parametrize("per_s", [0.0, -2.0, math.nan])
    def test_a_rate_is_above_zero(self, per_s: float) -> None:
        with pytest.raises(UsageError, match="must be above 0, saw"):
            Rate(per_s=per_s)


class TestRequests:
    @pytest.mark.parametrize(
        "content", [{}, {"messages": (Message(role="user", content="hi"),), "prompt": "hi"}]
    )
    def test_hold_either_messages_or_a_prompt(self, content: dict[str, object]) -> None:
        with pytest.raises(UsageError, match="request 'a' needs either 'messages' or 'prompt'"):
            Request(id="a", **content)  # type: ignore[arg-type]

    def test_an_empty_prompt_is_a_prompt(self) -> None:
        assert Request(id="a", prompt="").prompt == ""


class TestWorkload:
    WORKLOAD = Workload(
        requests=(request("a", segment="x"), request("b", segment="y"), request("c", segment="x")),
        sha256="s",
        source="here",
    )

    def test_segments_are_in_the_order_they_first_appear(self) -> None:
        assert self.WORKLOAD.segments == ("x", "y")

    def test_a_part_keeps_where_it_came_from(self) -> None:
        part = self.WORKLOAD.only(r for r in self.WORKLOAD.requests if r.segment == "y")

        assert [r.id for r in part.requests] == ["b"]
        assert (part.sha256, part.source) == ("s", "here")
