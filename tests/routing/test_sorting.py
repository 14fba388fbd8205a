"""Rules from a study's own prompts."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
from policies import copying

from speclift.bench.log_counting import log_drafters
from speclift.replayer.methods import settings_for
from speclift.routing.policy import SegmentRule
from speclift.routing.repetition import repeated_share, standing_tokens
from speclift.routing.sorting import FEATURES, SegmentPrompt, sorted_prompts
from speclift.studies.prompt_files import bundled_workload


def prompts(segment: str, speedup: float, *features: dict[str, Any]) -> list[SegmentPrompt]:
    return [
        SegmentPrompt(
            segment=segment, features=copying(**each), log_speedup=math.log(speedup), is_spec=speedup > 1
        )
        for each in features
    ]


def lengths(*values: int, **more: Any) -> list[dict[str, Any]]:
    return [{"prompt_characters": value, **more} for value in values]


LONG, SHORT = lengths(*range(500, 740, 20)), lengths(*range(100, 340, 20))


class TestWhatIsToldApart:
    def test_by_one_bound_a_round_number_between(self) -> None:
        found = sorted_prompts([*prompts("copy", 1.5, *LONG), *prompts("chat", 0.8, *SHORT)])

        assert found.right == 1.0
        assert found.segments["copy"].rules == (SegmentRule(temperature_max=0.0, prompt_characters_min=400),)
        assert (found.segments["copy"].found, found.segments["copy"].mistaken) == (1.0, 0.0)

    def test_never_above_the_temperature_that_was_measured(self) -> None:
        own, other = [{"temperature": 0.2}] * 10, [{"temperature": 0.9}] * 10
        found = sorted_prompts([*prompts("copy", 1.5, *own), *prompts("chat", 0.8, *other)])

        assert found.segments["copy"].rules == (SegmentRule(temperature_max=0.2),)


class TestWhatIsNot:
    def test_chance_alone_makes_no_rule_that_harms(self) -> None:
        """Of six draws of features that mean nothing, each rule that stands keeps the plain segment above the floor on
        prompts that it was made without."""
        for seed in range(6):
            chance = random.Random(seed)
            drawn = [
                {"prompt_characters": chance.randrange(100, 900), "max_tokens": chance.randrange(10, 500)}
                for _ in range(48)
            ]
            found = sorted_prompts([*prompts("copy", 1.3, *drawn[:24]), *prompts("chat", 0.85, *drawn[24:])])
            share = found.segments["copy"].mistaken if found.segments["copy"].rules else 0.0
            assert share * math.log(0.85) >= math.log(0.97)

    def test_a_plain_segment_that_loses_much_tolerates_fewer_mistakes(self) -> None:
        """One in ten of its prompts is like those of the other segment."""
        own, other = LONG * 2, [*SHORT, *lengths(*range(110, 350, 20)), *lengths(510, 530)]

        mild = sorted_prompts([*prompts("copy", 1.5, *own), *prompts("chat", 0.9, *other)])
        grave = sorted_prompts([*prompts("copy", 1.5, *own), *prompts("chat", 0.3, *other)])

        assert mild.segments["copy"].rules
        assert not grave.segments["copy"].rules or grave.segments["copy"].mistaken < 0.03

    @pytest.mark.parametrize(
        "made",
        [
            [],
            prompts("copy", 1.5, {}),
            prompts("chat", 0.8, {}),
            [*prompts("copy", 1.5, *LONG[:2]), *prompts("chat", 0.8, *SHORT)],
            [*prompts("copy", 1.5, {}), *prompts("chat", 0.8, {})],
            prompts("copy", 1.5, *[{"temperature": None}] * 5),
        ],
    )
    def test_too_few_prompts_make_none(self, made: Sequence[SegmentPrompt]) -> None:
        assert all(not found.rules for found in sorted_prompts(made).segments.values())


def bundled(speedups: dict[str, float]) -> list[SegmentPrompt]:
    """The bundled prompts, as if they had been measured so."""
    (setting,) = settings_for(["ngram,n=4,k=8"], log_drafters(), engine="llamacpp", ks=(8,), ngrams=(4,))
    made = []
    for request in bundled_workload().requests:
        texts = [message.content for message in request.messages]
        look = {
            "temperature": request.temperature,
            "max_tokens": request.max_tokens,
            "prompt_characters": sum(map(len, texts)),
            "turns": len(texts),
            "repetition": repeated_share(standing_tokens("\n".join(texts)), setting),
        }
        made += prompts(request.segment, speedups.get(request.segment, 0.88), look)
    return made


@pytest.mark.slow
def test_the_bundled_prompts_are_told_apart_as_the_documentation_says() -> None:
    made = bundled({"verbatim-rewrite": 1.36, "code-editing": 1.36})

    found = sorted_prompts(made)
    assert found.right == 1.0
    assert found.segments["code-editing"].rules == (SegmentRule(temperature_max=0.0, max_tokens_min=200),)
    shares = [sorted_prompts(made, names=names).right for names in (FEATURES[:-1], ("repetition",))]
    assert shares == pytest.approx([0.96, 0.90], abs=0.01)
