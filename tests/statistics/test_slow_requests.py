"""What separates slow requests: each cause is named where it is the truth, and nothing where there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from simulated import ARM, LOADS, comparison, constant, drawn, estimate, evidence, quiet_truth, study_places
from speclift.core.arm import BASELINE
from speclift.core.records import Record
from speclift.core.results import Level, TailRatio
from speclift.statistics.slow_requests import explained_tails, separation, slower_tail, tail_diagnosis

TEMPERATURES = (0.0, 0.5, 1.0)
TIMES = 6.0


def traffic(*, prompts: int = 120, repeats: int = 1, seed: int = 1) -> list[Record]:
    """Two loads; temperature, lengths and acceptance vary by prompt and have nothing to do with each other."""
    random = np.random.default_rng(seed)
    temperature = dict(enumerate(random.choice(TEMPERATURES, prompts).tolist()))
    tokens = dict(enumerate(random.integers(20, 2000, prompts).tolist()))
    output = dict(enumerate(random.integers(10, 300, prompts).tolist()))
    accepted = dict(enumerate(random.integers(10, 90, prompts).tolist()))
    places = study_places(prompts=prompts, requests=prompts * repeats, loads=LOADS[:2], rounds=1)

    def varied(record: Record) -> Record:
        number = int(record.place.request_id[1:])
        is_arm = record.place.arm == ARM.name
        return replace(
            record,
            place=replace(record.place, temperature=temperature[number]),
            prompt_tokens=tokens[number],
            output_tokens=output[number],
            # As long per token whatever the length.
            last_token_s=(record.first_token_s or 0) + (record.tpot_s or 0) * (output[number] - 1),
            drafted=100 if is_arm else None,
            accepted=accepted[number] if is_arm else None,
        )

    return [varied(record) for record in drawn(places, quiet_truth(constant(1.67)), seed=seed)]


def slowed(
    records: list[Record], is_cause: Callable[[Record], bool], *, share: float, seed: int = 2
) -> list[Record]:
    random = np.random.default_rng(seed)

    def slower(record: Record) -> Record:
        if record.place.arm == BASELINE or not is_cause(record) or random.random() > share:
            return record
        first_s = record.first_token_s or 0.0
        return replace(record, last_token_s=first_s + TIMES * ((record.last_token_s or 0.0) - first_s))

    return [slower(record) for record in records]


CAUSES: dict[str, Callable[[Record], bool]] = {
    "segment chat": lambda r: r.place.segment == "chat",
    "load c=4": lambda r: r.place.load == LOADS[1],
    "temperature above 0.5": lambda r: (r.place.temperature or 0) > 0.5,
    "temperature up to 0": lambda r: r.place.temperature == 0,
    "prompt above": lambda r: (r.prompt_tokens or 0) > 1600,
    "prompt up to": lambda r: (r.prompt_tokens or 0) < 300,
    "output above": lambda r: (r.output_tokens or 0) > 230,
    "output up to": lambda r: (r.output_tokens or 0) < 60,
    "acceptance rate up to": lambda r: (r.accepted or 0) < 25,
}


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("cause", CAUSES)
def test_the_cause_is_named(cause: str, repeats: int) -> None:
    records = slowed(traffic(repeats=repeats), CAUSES[cause], share=0.5)
    found = separation(records, ARM.name, "tpot")
    assert found is not None
    assert found.split.startswith(cause)
    assert found.inside > 0.25
    assert found.outside < 0.1


@pytest.mark.parametrize("share", [0.02, 0.06, 0.2])
def test_nothing_is_said_of_slow_requests_anywhere(share: float) -> None:
    """All splits together have an error of 5 %: more than 4 of 20 studies with a claim would be chance in 0.3 %."""
    said = [
        separation(
            slowed(traffic(prompts=60, seed=seed), lambda _r: True, share=share, seed=seed), ARM.name, "tpot"
        )
        for seed in range(20)
    ]
    assert sum(found is not None for found in said) <= 4


def test_a_slow_prompt_sent_often_is_one_prompt() -> None:
    """A single prompt is slow all fifty times: that its segment is its own says nothing of the segment."""
    records = slowed(traffic(prompts=12, repeats=50), lambda r: r.place.request_id == "p1", share=1.0)
    assert separation(records, ARM.name, "tpot") is None


@pytest.mark.parametrize("prompts", [1, 2, 3])
def test_few_requests_say_nothing(prompts: int) -> None:
    assert separation(slowed(traffic(prompts=prompts), lambda _r: True, share=0.5), ARM.name, "tpot") is None


def test_what_is_unknown_separates_nothing() -> None:
    records = [
        replace(
            r,
            place=replace(r.place, temperature=None, segment="all", load=LOADS[0]),
            prompt_tokens=None,
            accepted=None,
        )
        for r in slowed(traffic(), CAUSES["segment chat"], share=0.5)
    ]
    assert separation(records, ARM.name, "tpot") is None
    assert separation([], ARM.name, "tpot") is None
    assert separation([r for r in records if r.place.arm == ARM.name], ARM.name, "tpot") is None


class TestDiagnosis:
    """The same requests in the mixed traffic and, of one kind, alone."""

    tail = TailRatio(
        arm=ARM.name, load=LOADS[0], metric="tpot", statistic="P95", ratio=estimate(0.5, 0.4, 0.6)
    )

    def said(self, mixed: list[Record], alone: list[Record]) -> str:
        finding = tail_diagnosis(mixed, alone, self.tail, traffic="segment copy")
        assert finding is not None
        assert (finding.check, finding.level, finding.arm) == ("tail-diagnosis", Level.INFO, ARM.name)
        return finding.message

    def copies(self, records: list[Record]) -> list[Record]:
        return [record for record in records if record.place.segment == "copy"]

    def test_a_tail_of_the_mix_is_gone_alone(self) -> None:
        mixed = slowed(traffic(), lambda _r: True, share=0.15)
        message = self.said(mixed, self.copies(traffic(seed=3)))
        assert "with segment copy alone 0 of 80 requests are slow" in message
        assert "of 240, of these kinds" in message
        assert message.endswith("The tail is gone without the other requests")

    def test_a_tail_of_the_arm_is_still_there(self) -> None:
        mixed, alone = (slowed(traffic(seed=seed), lambda _r: True, share=0.15, seed=seed) for seed in (1, 2))
        assert "slow without the other requests too" in self.said(mixed, self.copies(alone))

    def test_few_requests_do_not_tell(self) -> None:
        mixed = slowed(traffic(), lambda _r: True, share=0.05)
        assert "Too few requests to tell" in self.said(mixed, self.copies(traffic(prompts=12)))

    def test_without_slow_requests_or_answers_there_is_nothing_to_say(self) -> None:
        assert tail_diagnosis(traffic(), traffic(), self.tail, traffic="x") is None
        assert (
            tail_diagnosis(slowed(traffic(), lambda _r: True, share=0.1), [], self.tail, traffic="x") is None
        )


class TestFinding:
    slower = TailRatio(
        arm=ARM.name, load=LOADS[0], metric="tpot", statistic="P95", ratio=estimate(0.5, 0.4, 0.6)
    )

    def test_only_of_an_arm_that_wins_with_a_tail_that_loses(self) -> None:
        unsure = replace(self.slower, ratio=estimate(0.9, 0.8, 1.1))
        assert slower_tail(evidence(tails=(self.slower,))) == self.slower
        assert slower_tail(evidence(tails=(unsure,))) is None
        assert slower_tail(evidence(tails=(self.slower,), overall=comparison(0.9, 1.1, 1.3))) is None
        assert slower_tail(evidence(tails=(self.slower,), overall=None)) is None

    def test_nothing_is_said_where_nothing_separates(self) -> None:
        records = slowed(traffic(), lambda _r: True, share=0.1)
        assert list(explained_tails(records, [evidence(tails=(self.slower,))])) == []
