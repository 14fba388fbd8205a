from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samples import hostile_text, request
from speclift.core.errors import UsageError
from speclift.core.traffic import Request, Workload
from speclift.studies.prompt_files import read_workload
from speclift.workload.prompts import parse_workload, select, split

GOOD = b'{"prompt": "hi"}\n'


def parse(data: bytes) -> Workload:
    return parse_workload(data.splitlines(keepends=True), source="p.jsonl")


def line(**fields: object) -> bytes:
    return json.dumps({"prompt": "hi", **fields}).encode() + b"\n"


def complaint(data: bytes) -> str:
    with pytest.raises(UsageError) as caught:
        parse(data)
    return str(caught.value)


class TestWhatIsRead:
    def test_what_the_answer_has_to_keep_to_is_kept(self) -> None:
        asked = {
            "stop": ["END"],
            "response_format": {"type": "json_object"},
            "chat_template_kwargs": {"enable_thinking": False},
            "reasoning_effort": "low",
        }
        (request,) = parse(line(**asked)).requests

        assert request.answer_settings == asked
        assert not request.has_tools

    def test_settings_that_are_not_sent_are_counted_where_they_change_anything(self) -> None:
        workload = parse(line(top_k=40) + line(top_k=40, n=2) + line(top_k=0, n=1, logit_bias={}, min_p=0.0))

        assert (
            workload.left_out
            == "n, which is not sent, of requests: 1, top_k, which is not sent, of requests: 2"
        )
        assert parse(line()).left_out == ""

    def test_every_field_has_its_place(self) -> None:
        workload = parse(
            line(
                id="a",
                segment="chat",
                temperature=0.7,
                top_p=0.9,
                max_tokens=12,
                arrival_s=3.5,
                response="hello",
            )
        )

        assert workload.requests == (
            Request(
                id="a",
                segment="chat",
                prompt="hi",
                temperature=0.7,
                top_p=0.9,
                max_tokens=12,
                arrival_s=3.5,
                response="hello",
            ),
        )

    @pytest.mark.parametrize(
        "variant",
        [
            b"\xef\xbb\xbf" + GOOD * 2,
            (GOOD * 2).replace(b"\n", b"\r\n"),
            (GOOD * 2).rstrip(b"\n"),
            b"\n" + GOOD + b"\n" + GOOD,
        ],
        ids=["byte order mark", "CRLF", "no line end at the end", "blank lines"],
    )
    def test_what_an_editor_adds_changes_nothing_that_is_sent(self, variant: bytes) -> None:
        plain, edited = parse(GOOD * 2), parse(variant)

        assert [r.prompt for r in edited.requests] == [r.prompt for r in plain.requests]
        assert edited.sha256 == plain.sha256

    @given(hostile_text)
    def test_prompt_text_passes_through_unharmed(self, text: str) -> None:
        escaped = parse(line(prompt=text) + line(messages=[{"role": "user", "content": text}], prompt=None))

        assert escaped.requests[0].prompt == text
        assert escaped.requests[1].messages[0].content == text

    @given(hostile_text)
    def test_ids_and_segments_can_always_be_stored(self, text: str) -> None:
        read = parse(line(id=f"x{text}", segment=text)).requests[0]

        assert f"{read.id}{read.segment}".encode()


MALFORMED = [
    (b'{"prompt": "hi"', "p.jsonl line 2, column 16: not JSON"),
    (b'{"prompt": "hi"} x', "p.jsonl line 2, column 18: not JSON (Extra data)"),
    (b"{'prompt': 'hi'}", "p.jsonl line 2, column 2: not JSON"),
    (b'{"prompt": "a\x1bb"}', "p.jsonl line 2, column 14: not JSON (Invalid control character at)"),
    (b'{"prompt": "\xff"}', "p.jsonl line 2: not UTF-8 at byte 12"),
    (b'"hi"', "p.jsonl line 2: expected a JSON object, saw str"),
    (b"{}", "p.jsonl line 2: needs either 'messages' or 'prompt'"),
    (b'{"prompt": "a", "messages": []}', "p.jsonl line 2: needs either 'messages' or 'prompt'"),
    (b'{"prompt": ["a"]}', "p.jsonl line 2: 'prompt' must be text, saw list"),
    (b'{"messages": []}', "p.jsonl line 2: 'messages' must be a non-empty list"),
    (b'{"messages": ["hi"]}', "p.jsonl line 2: messages[0] needs text 'role' and 'content'"),
    (b'{"messages": [{"role": "user"}]}', "p.jsonl line 2: messages[0] needs text 'role' and 'content'"),
    (b'{"prompt": "a", "segment": 3}', "p.jsonl line 2: 'segment' must be text, saw int"),
    (b'{"prompt": "a", "temperature": "hot"}', "'temperature' must be a number in 0..5, saw 'hot'"),
    (b'{"prompt": "a", "temperature": NaN}', "'temperature' must be a number in 0..5, saw nan"),
    (b'{"prompt": "a", "tools": {}}', "'tools' cannot be dict"),
    (b'{"prompt": "a", "response_format": "json"}', "'response_format' cannot be str"),
    (b'{"prompt": "a", "stop": ["END", 7]}', "'stop' must be text or a list of texts"),
    (b'{"prompt": "a", "top_p": 1.1}', "'top_p' must be a number in 0..1, saw 1.1"),
    (b'{"prompt": "a", "arrival_s": Infinity}', "'arrival_s' must be a number"),
    (b'{"prompt": "a", "arrival_s": 1' + b"0" * 400 + b"}", "'arrival_s' must be a number"),
    (b'{"prompt": "a", "max_tokens": 2.5}', "'max_tokens' must be a whole number of at least 1, saw 2.5"),
    (b'{"prompt": "a", "max_tokens": 1' + b"0" * 5000 + b"}", "p.jsonl line 2: "),
    (b'{"prompt": ' + b"[" * 100_000, "p.jsonl line 2: "),
]  # fmt: skip


class TestWhatIsRefused:
    @pytest.mark.parametrize(("data", "message"), MALFORMED, ids=[repr(data[:40]) for data, _ in MALFORMED])
    @pytest.mark.parametrize("end", [b"\n", b"\r\n", b""], ids=["LF", "CRLF", "end of file"])
    def test_a_malformed_line_is_named_with_what_was_seen(
        self, data: bytes, message: str, end: bytes
    ) -> None:
        said = complaint(GOOD + data + end)

        assert message in said
        assert said.startswith("p.jsonl line 2")

    @pytest.mark.parametrize("data", [b"", b"\n\n", b"  \r\n", b"\xef\xbb\xbf"])
    def test_a_file_without_requests(self, data: bytes) -> None:
        assert complaint(data) == "p.jsonl holds no requests"

    def test_an_id_used_twice_names_both_lines(self) -> None:
        assert complaint(line(id="a") + GOOD + line(id="a")) == "p.jsonl line 3: id 'a' was used on line 1"

    @pytest.mark.parametrize("make", ["absent", "folder"])
    def test_a_file_that_cannot_be_read(self, tmp_path: Path, make: str) -> None:
        path = tmp_path / "p.jsonl"
        if make == "folder":
            path.mkdir()

        with pytest.raises(UsageError, match="cannot read --prompts"):
            read_workload(path)


def workload_of(**sizes: int) -> Workload:
    requests = [request(f"{name}-{i}", segment=name) for name, size in sizes.items() for i in range(size)]
    return Workload(requests=tuple(requests), sha256="s", source="here")


sizes = st.dictionaries(st.sampled_from(["chat", "code", "story", "qa"]), st.integers(1, 12), min_size=1)


def ids(workload: Workload) -> list[str]:
    return [r.id for r in workload.requests]


class TestSelecting:
    @given(sizes, st.integers(1, 40))
    def test_any_prefix_is_balanced_over_the_segments_that_still_have_prompts(
        self, sizes: dict[str, int], limit: int
    ) -> None:
        chosen = select(workload_of(**sizes), limit=limit)

        taken = Counter(r.segment for r in chosen.requests)
        assert len(chosen.requests) == min(limit, sum(sizes.values()))
        most = max(taken.values())
        assert all(taken[name] >= min(size, most - 1) for name, size in sizes.items())

    @given(sizes, st.integers(1, 10), st.integers(1, 10))
    def test_a_larger_selection_begins_with_the_smaller_one(
        self, sizes: dict[str, int], small: int, more: int
    ) -> None:
        workload = workload_of(**sizes)

        larger = select(workload, limit=small + more, seed=1)
        assert ids(larger)[:small] == ids(select(workload, limit=small, seed=1))

    def test_a_cap_on_tokens_only_lowers(self) -> None:
        workload = Workload(
            requests=(request("a", max_tokens=10), request("b", max_tokens=99)), sha256="s", source="here"
        )

        capped = select(workload, max_tokens=50)
        assert {r.id: r.max_tokens for r in capped.requests} == {"a": 10, "b": 50}

    @pytest.mark.parametrize(
        ("workload", "limit"),
        [(workload_of(chat=2), 0), (Workload(requests=(), sha256="s", source="here"), None)],
    )
    def test_nothing_left_is_an_error_and_not_an_empty_study(
        self, workload: Workload, limit: int | None
    ) -> None:
        with pytest.raises(UsageError, match="no prompts are left after filtering") as caught:
            select(workload, limit=limit)

        assert "--segment" in caught.value.hint


class TestSplitting:
    @given(sizes, st.integers(0, 9), st.floats(0, 1))
    def test_parts_are_disjoint_and_complete(self, sizes: dict[str, int], seed: int, share: float) -> None:
        workload = workload_of(**sizes)
        tune, held_out = split(workload, seed=seed, tune_share=share)

        assert set(ids(tune)) & set(ids(held_out)) == set()
        assert sorted(ids(tune) + ids(held_out)) == sorted(ids(workload))

    @given(sizes, st.integers(0, 9), st.floats(0, 1))
    def test_every_segment_is_divided_alike(self, sizes: dict[str, int], seed: int, share: float) -> None:
        tune, _ = split(workload_of(**sizes), seed=seed, tune_share=share)

        taken = Counter(r.segment for r in tune.requests)
        assert all(abs(taken[name] - size * share) <= 0.5 for name, size in sizes.items())
