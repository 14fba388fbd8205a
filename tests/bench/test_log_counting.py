"""However a log is cut into parts, and in whatever order those are merged, the counts are those of the whole log."""

from __future__ import annotations

import itertools
import json
import pickle
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from speclift.bench.ask import ReplayAsk
from speclift.bench.log_counting import (
    SEGMENTS_MAX,
    ShardCounter,
    ShardTotals,
    asked_settings,
    log_drafters,
)
from speclift.core.errors import UsageError
from speclift.replayer.result import ReplayResult
from speclift.verbs.replay import replay

TOKENS = st.lists(st.integers(0, 5), min_size=1, max_size=30)
ENTRY = st.one_of(
    st.fixed_dictionaries(
        {"prompt_token_ids": TOKENS, "response_token_ids": TOKENS},
        optional={
            "segment": st.sampled_from(["chat", "code", "copy"]),
            "temperature": st.sampled_from([0, 0.7]),
            "max_tokens": st.integers(1, 40),
            "logprobs": st.just(2),
            "min_p": st.just(0.1),
        },
    ),
    st.just({"prompt_token_ids": [1, 2]}),
    st.just("no request at all"),
)
LOGS = st.lists(ENTRY, min_size=1, max_size=30)
ASK = ReplayAsk(methods=("ngram", "ngram:simple"), ks=(1, 4), ngrams=(1, 2))


def written(path: Path, entries: list[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries), encoding="utf-8")
    return path


def document(logs: list[Path], ask: ReplayAsk = ASK) -> ReplayResult | str:
    """What is written of them; places of faults are named as they lie in the whole log."""
    try:
        found = replay(logs, ask)
    except UsageError:
        return "nothing to replay"
    return structs.replace(
        found,
        findings=tuple(
            replace(finding, message=finding.message.partition("; the first")[0])
            if finding.check == "unreadable"
            else finding
            for finding in found.findings
        ),
    )


class TestAnyCut:
    @settings(max_examples=30)
    @given(log=LOGS, cuts=st.sets(st.integers(0, 30), max_size=5))
    def test_gives_the_same_document(
        self, log: list[Any], cuts: set[int], tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        folder = tmp_path_factory.mktemp("log")
        whole = document([written(folder / "whole", log)])
        edges = [0, *sorted(cuts), len(log)]
        parts = [log[start:end] for start, end in itertools.pairwise(edges)]

        cut = document([written(folder / f"{number}", part) for number, part in enumerate(parts)])

        assert msgspec.json.encode(cut) == msgspec.json.encode(whole)

    @settings(max_examples=30)
    @given(log=LOGS, parts=st.integers(1, 6), seed=st.integers(0, 99))
    def test_merged_in_any_order_and_tree_counts_the_same(
        self, log: list[Any], parts: int, seed: int, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        """As machines would: each counts parts on its own, and their counts travel."""
        folder = tmp_path_factory.mktemp("log")
        shards = [(number, str(written(folder / f"{number}", log[number::parts]))) for number in range(parts)]
        in_order, shuffled = ShardTotals(), ShardTotals()
        for number, shard in shards:
            in_order.merge(ShardCounter(ASK).count(shard, number))
        random.Random(seed).shuffle(shards)
        one, other = ShardTotals(), ShardTotals()
        for place, (number, shard) in enumerate(shards):
            travelled = pickle.loads(pickle.dumps(ShardCounter(ASK).count(shard, number)))
            (one if place % 2 else other).merge(travelled)
        shuffled.merge(one)
        shuffled.merge(other)

        drafters = asked_settings(ASK, log_drafters())
        assert shuffled.results(drafters) == in_order.results(drafters)
        assert shuffled.log == in_order.log
        assert shuffled.first_fault == in_order.first_fault

    @pytest.mark.parametrize("method", ["ngram:map-k", "ngram:mod", "ngram:cache"])
    def test_of_drafters_that_remember_gives_the_same(self, tmp_path: Path, method: str) -> None:
        """They go over the parts in the order of the log."""
        phrase = list(range(40))
        log = [{"prompt_token_ids": [number, 7], "response_token_ids": phrase} for number in range(6)]
        ask = ReplayAsk(methods=(method,), ks=(4,), ngrams=(2,))
        parts = [written(tmp_path / f"{number}", [entry]) for number, entry in enumerate(log)]

        assert document(parts, ask) == document([written(tmp_path / "whole", log)], ask)


def test_too_many_segments_are_too_many_in_all_parts_together(tmp_path: Path) -> None:
    def part(start: int) -> Path:
        entries = [
            {"prompt_token_ids": [1], "response_token_ids": [1, 2], "segment": f"s{start + number}"}
            for number in range(SEGMENTS_MAX // 2 + 1)
        ]
        return written(tmp_path / f"{start}", entries)

    assert replay([part(0)], ks=(1,), ngrams=(1,)).log.replayed
    with pytest.raises(UsageError, match="more than 1,000 segments"):
        replay([part(0), part(10_000)], ks=(1,), ngrams=(1,))
