"""Logs to accepted lengths: what is counted, what is left out and said, and how a text becomes tokens."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from byte_tokenizer import write_byte_tokenizer
from speclift.bench import log_counting as pipeline
from speclift.core.errors import UsageError
from speclift.replayer.result import ReplayedSegment, ReplayResult
from speclift.verbs.replay import replay

PHRASE = list(range(100, 130))

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(*lines: dict[str, Any] | str, name: str = "log.jsonl") -> Path:
        path = tmp_path / name
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("\n".join(texts), encoding="utf-8")
        return path

    return _write


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    return write_byte_tokenizer(tmp_path / "tokenizer")


def copying(**fields: Any) -> dict[str, Any]:
    return {"prompt_token_ids": PHRASE, "response_token_ids": PHRASE, "temperature": 0, **fields}


def one(result: ReplayResult, segment: str = "all") -> ReplayedSegment:
    (found,) = [each for each in result.segments if each.segment == segment]
    return found


def checks(result: ReplayResult) -> set[str]:
    return {finding.check for finding in result.findings}


class TestCounting:
    def test_a_copied_answer_takes_as_few_steps_as_k_allows(self, write: Write) -> None:
        found = one(replay([write(copying())], ks=(1, 4), ngrams=(2,)))

        # The first token is the prefill's, the second a plain step; then 28 tokens, k + 1 a step.
        assert found.accepted_length.k == (1, 4)
        assert found.accepted_length.value == (29 / (1 + 14), 29 / (1 + 6))
        assert found.draft_share == 6 / 7
        assert (found.method, found.ngram, found.engine) == ("ngram", 2, "vllm")

    @pytest.mark.slow
    def test_a_longer_log_takes_no_more_memory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pipeline, "BATCH_TOKENS", 2000)
        line = json.dumps(copying(response_token_ids=PHRASE * 2)) + "\n"

        def peak_bytes(lines: int) -> int:
            log = tmp_path / f"{lines}.jsonl"
            log.write_text(line * lines, encoding="utf-8")
            tracemalloc.start()
            try:
                assert replay([log], ks=(4,), ngrams=(2,)).log.replayed == lines
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

        peak_bytes(100)  # what is imported and compiled once
        assert peak_bytes(1000) < 1.2 * peak_bytes(100)


ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "abcabc"}]}


class TestText:
    def test_an_answer_cut_off_has_no_end_token(self, write: Write, tokenizer: str) -> None:
        cut = {**ASKED, "response": "abc", "max_tokens": 3}
        said = {**ASKED, "response": "abc", "finish_reason": "length"}
        result = replay([write(cut, said)], tokenizer=tokenizer)

        assert result.log.tokens == 2 * (len("user:abcabc\n") + 3)

    def test_ids_of_another_vocabulary_than_the_tokenizers_are_noticed(
        self, write: Write, tokenizer: str
    ) -> None:
        other = {"prompt_token_ids": [1, 2], "response_token_ids": [7, 8, 9], "response": "abc"}

        assert "other-vocabulary" in checks(replay([write(other)], tokenizer=tokenizer))


class TestRefusals:
    @pytest.mark.parametrize(
        ("lines", "settings", "message"),
        [
            ((), {}, "holds no requests"),
            (("\x00\x01\x02",), {}, "holds no request that can be read"),
            ((copying(response_token_ids=None),), {}, "none of the 1 requests .* has a response"),
            (({"foo": 1},), {}, "needs either 'messages' or 'prompt'"),
            ((copying(segment="chat"),), {"segments": ("chta",)}, "Did you mean 'chat'"),
            ((copying(),), {"methods": ("ngrm",)}, "Did you mean 'ngram'"),
            ((copying(),), {"methods": ("draft",)}, "cannot be replayed"),
            ((copying(),), {"methods": ("ngram+draft",)}, "cannot be replayed"),
            ((copying(),), {"methods": ("ngram,x=3",)}, "unknown setting"),
            ((copying(),), {"methods": ("ngram,n=two",)}, "whole number"),
            ((copying(),), {"methods": ("ngram,n_min=4,n=3",)}, "n_min must lie in"),
            ((copying(),), {"methods": ("ngram:mod,n_min=1",)}, "n_min is for ngram, ngram:gpu"),
            ((copying(),), {"methods": ("ngram:map-k,min_hits=1",)}, "min_hits is for ngram:map-k4v"),
            ((copying(),), {"methods": ("ngram:map-k",), "engine": "vllm"}, "is not a method of vllm"),
            ((copying(),), {"engine": "vlm"}, "Did you mean 'vllm'"),
            ((copying(),), {"ks": (0,)}, r"--k takes numbers in 1\.\.128, saw 0"),
            ((copying(),), {"ngrams": ()}, "--ngram has no number"),
            ((copying(),), {"methods": ("ngram:mod",), "ks": range(1, 99)}, "a table of 16 MiB"),
            ((copying(),), {"cost": -1.0}, "--cost is a share"),
        ],
    )
    def test_a_wrong_log_or_setting_says_what_was_seen(
        self, write: Write, lines: tuple[Any, ...], settings: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(UsageError, match=message):
            replay([write(*lines)], **settings)

    def test_a_file_of_something_else_is_not_read_to_its_end(
        self, write: Write, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pipeline, "UNREADABLE_AT_START_MAX", 3)
        with pytest.raises(UsageError, match="line 1: not JSON"):
            replay([write(*["garbage"] * 5, copying())])

    def test_ids_as_segments_are_refused_before_they_fill_the_memory(
        self, write: Write, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pipeline, "SEGMENTS_MAX", 3)
        with pytest.raises(UsageError, match="more than 3 segments"):
            replay([write(*(copying(segment=str(number)) for number in range(5)))])
