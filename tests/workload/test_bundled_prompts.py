from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from speclift.core.traffic import Request
from speclift.studies.prompt_files import bundled_workload

SEGMENTS = {
    "chat",
    "code-writing",
    "code-editing",
    "summarise",
    "passage-qa",
    "json-extraction",
    "verbatim-rewrite",
    "creative",
}
REQUESTS = bundled_workload().requests


def text_of(request: Request) -> str:
    return "\n".join(message.content for message in request.messages) or request.prompt or ""


class TestTheBundledSet:
    def test_has_eight_kinds_of_traffic_with_24_prompts_or_more_each(self) -> None:
        sizes = Counter(request.segment for request in REQUESTS)

        assert set(sizes) >= SEGMENTS
        assert min(sizes.values()) >= 24

    def test_every_prompt_says_how_it_is_sampled_and_how_long_it_may_get(self) -> None:
        assert all(request.temperature is not None for request in REQUESTS)
        assert all(16 <= request.max_tokens <= 512 for request in REQUESTS)

    def test_each_segment_has_its_usual_temperature(self) -> None:
        temperatures = defaultdict(set)
        for request in REQUESTS:
            temperatures[request.segment].add(request.temperature or 0.0)

        assert all(len(seen) == 1 for seen in temperatures.values())
        assert temperatures["verbatim-rewrite"] == temperatures["json-extraction"] == {0.0}
        assert max(temperatures["creative"]) > max(temperatures["chat"]) > max(temperatures["summarise"]) > 0

    def test_no_id_and_no_prompt_occurs_twice(self) -> None:
        assert len({request.id for request in REQUESTS}) == len(REQUESTS)
        assert len({text_of(request) for request in REQUESTS}) == len(REQUESTS)

    def test_prompts_fit_the_default_context_with_their_answer(self) -> None:
        # Two characters per token is a cautious guess for English and code.
        longest = max(REQUESTS, key=lambda request: len(text_of(request)) / 2 + request.max_tokens)

        assert len(text_of(longest)) / 2 + longest.max_tokens < 2048

    @pytest.mark.parametrize("segment", ["verbatim-rewrite", "summarise", "passage-qa"])
    def test_segments_over_a_text_carry_that_text(self, segment: str) -> None:
        lengths = [len(text_of(request)) for request in REQUESTS if request.segment == segment]

        assert min(lengths) > 150

    def test_reading_it_twice_gives_the_same_hash(self) -> None:
        assert bundled_workload().sha256 == bundled_workload().sha256
