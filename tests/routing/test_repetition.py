"""How much of a prompt its own drafter would have had right."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from statistics import median

from speclift.bench.log_counting import log_drafters
from speclift.replayer.methods import DrafterSetting, settings_for
from speclift.routing.repetition import TOKENS_LEAST, TOKENS_MAX, PromptLook, repeated_share, standing_tokens
from speclift.studies.prompt_files import bundled_workload


def setting(method: str = "ngram,n=3,k=5", engine: str = "vllm") -> DrafterSetting:
    (found,) = settings_for([method], log_drafters(), engine=engine, ks=(5,), ngrams=(3,))
    return found


def share(text: str, method: str = "ngram,n=3,k=5") -> float:
    return repeated_share(standing_tokens(text), setting(method))


def look(times: Iterator[float], limit_s: float = 0.002) -> PromptLook:
    return PromptLook(setting(), clock=lambda: next(times), limit_s=limit_s)


POEM = "the quick brown fox jumps over a lazy dog while nine wizards box with seven old gods , "


class TestRepeatedShare:
    def test_most_of_a_second_copy_is_found(self) -> None:
        assert 0.3 < share(POEM * 2) < 0.5
        assert share(POEM * 10) > 0.6

    def test_it_is_the_drafter_s_own_rule(self) -> None:
        assert share(POEM * 2, "ngram,n=2,k=1") < share(POEM * 2, "ngram,n=2,k=8")


class TestTheTimeLimit:
    def test_a_look_that_took_too_long_makes_the_next_shorter_and_quick_ones_longer_again(self) -> None:
        """The clock is read at the beginning, after the words and at the end."""
        trial = look(iter((0, 0.001, 0.008, *([0] * 300))))
        trial(POEM)
        assert trial.tokens_max == TOKENS_MAX // 4

        trial(POEM)
        assert trial.tokens_max == int(TOKENS_MAX // 4 * 1.25)
        for _ in range(20):
            trial(POEM)
        assert trial.tokens_max == TOKENS_MAX

    def test_however_busy_the_machine_there_is_a_least(self) -> None:
        trial = look(count(0, 1.0))
        for _ in range(5):
            assert trial(POEM * 100) is None

        assert trial.tokens_max == TOKENS_LEAST


def test_on_the_bundled_prompts_it_tells_conversations_that_copied_before() -> None:
    """And no first request to copy: that is what docs/gateway.md says of it."""
    by_kind: dict[tuple[str, bool], list[float]] = {}
    for request in bundled_workload().requests:
        text = "\n".join(message.content for message in request.messages)
        by_kind.setdefault((request.segment, len(request.messages) > 1), []).append(share(text))

    assert median(by_kind["verbatim-rewrite", True]) > 0.3
    assert min(by_kind["verbatim-rewrite", True]) > 0.2
    others = [
        value for kind, values in by_kind.items() if kind != ("verbatim-rewrite", True) for value in values
    ]
    assert max(others) < 0.2
    assert median(by_kind["verbatim-rewrite", False]) < 0.05
