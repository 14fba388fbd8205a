from __future__ import annotations

from collections import Counter

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

    def test_no_id_and_no_prompt_occurs_twice(self) -> None:
        assert len({request.id for request in REQUESTS}) == len(REQUESTS)
        assert len({text_of(request) for request in REQUESTS}) == len(REQUESTS)

    def test_prompts_fit_the_default_context_with_their_answer(self) -> None:
        # Two characters per token is a cautious guess for English and code.
        longest = max(REQUESTS, key=lambda request: len(text_of(request)) / 2 + request.max_tokens)

        assert len(text_of(longest)) / 2 + longest.max_tokens < 2048
