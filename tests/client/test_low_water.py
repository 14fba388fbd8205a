"""Tokens that lie unread until the end is there: what is saved by it must not change what is measured."""

from __future__ import annotations

import sys
import threading
import time

import pytest
from scripted import Peer, Script, ScriptedServer
from sending import ANSWER, END, HEAD, PATIENCE_S, USAGE, ask, chunk, once, post, sender_for, token, work

from speclift.client import connection
from speclift.client import sender as sender_module
from speclift.client.exchange import Exchange, Sent
from speclift.client.pacing import (
    ALIKE_ANSWERS_MIN,
)
from speclift.client.sender import Sender
from speclift.core.records import Outcome


def after_a_whole_answer(*steps: bytes | float) -> Script:
    """The second request gets these bytes, with pauses in seconds between; then the server closes."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(ANSWER)
        once(*steps)(peer)

    return script


def finish_first(text: str, finish: str | None = None) -> bytes:
    """A chunk whose end does not tell whether it is the last, as llama.cpp orders its keys."""
    return chunk({"choices": [{"finish_reason": finish, "delta": {"content": text}}]})


def under_way(sender: Sender) -> Exchange:
    (exchange,) = sender._under_way.values()
    return exchange


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's time stamps are Linux's")
class TestGathering:
    def test_a_token_does_not_wake_us_and_the_ending_does(self) -> None:
        sent: list[Sent] = []
        go_on, is_sent = threading.Event(), threading.Event()

        def script(peer: Peer) -> None:
            peer.request()
            peer.send(ANSWER)
            peer.request()
            peer.send(HEAD + token("one"))
            go_on.wait(PATIENCE_S)
            go_on.clear()
            peer.send(token(" two"))
            is_sent.set()
            go_on.wait(PATIENCE_S)
            peer.send(token(" three", "length") + USAGE + END)

        with ScriptedServer(script) as server:
            sender = sender_for(server, sent)
            sender.submit(post(0))
            work(sender)
            sender.submit(post(1))
            work(sender, until=lambda: bool(sender._under_way) and under_way(sender).stream.text_count == 1)
            sender._tidy_at = time.perf_counter() + PATIENCE_S
            go_on.set()
            assert is_sent.wait(PATIENCE_S)
            sender.turn(0.05)
            assert under_way(sender).connection.gathers
            assert under_way(sender).later == []
            go_on.set()
            work(sender)
            sender.close()

        assert sent[1].result.text == "one two three"

    def like_answers(self, came: list[float], *, last: int) -> Script:
        """Answers of 60 words, then one of `last` words; `came` gets the moments at which they were sent."""

        def script(peer: Peer) -> None:
            for count in [60] * ALIKE_ANSWERS_MIN + [last]:
                peer.request()
                peer.send(HEAD + token("first"))
                for _ in range(count - 2):
                    peer.send(token(" word"))
                peer.pause(0.02)
                peer.send(token(" last", "length") + USAGE + END)
                came.append(time.perf_counter())

        return script

    @pytest.mark.slow
    def test_an_answer_much_shorter_than_those_before_it_is_whole_and_has_its_own_time(self) -> None:
        came: list[float] = []
        sent, _ = ask(self.like_answers(came, last=5), times=ALIKE_ANSWERS_MIN + 1)

        assert sent[-1].result.text == "first word word word last"
        assert sent[-1].result.last_token_s == sent[-1].end
        # It was read when silence was looked at, and was in the kernel before the server's call returned.
        assert sent[-1].end <= came[-1] + 0.001

    @pytest.mark.slow
    def test_the_end_of_like_answers_wakes_us_also_where_each_chunk_is_looked_at(self) -> None:
        sent: list[Sent] = []
        has_read = threading.Event()

        def script(peer: Peer) -> None:
            for _ in range(ALIKE_ANSWERS_MIN + 1):
                peer.request()
                peer.send(HEAD + finish_first("one"))
                has_read.wait(PATIENCE_S)
                peer.send(b"".join(finish_first(" word") for _ in range(60)))
                peer.pause(0.05)
                peer.send(finish_first(" end", "length") + USAGE + END)
            peer.request()  # a server that closes would wake us, too

        with ScriptedServer(script) as server:
            sender = sender_for(server, sent)
            for index in range(ALIKE_ANSWERS_MIN + 1):
                has_read.clear()
                sender.submit(post(index))
                work(
                    sender, until=lambda: bool(sender._under_way) and under_way(sender).stream.text_count == 1
                )
                # Whoever looks at silent streams must not be who finds the end.
                sender._tidy_at = time.perf_counter() + 2 * PATIENCE_S
                has_read.set()
                work(sender)
            sender.close()

        assert [len(each.result.text.split()) for each in sent] == [62] * (ALIKE_ANSWERS_MIN + 1)

    def test_without_the_kernels_stamps_every_token_wakes_us(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sender_module, "turn_stamps_on", lambda: None)
        monkeypatch.setattr(connection, "ask_for_stamps", lambda _: None)
        sent: list[Sent] = []
        with ScriptedServer(after_a_whole_answer(HEAD + token("one"), 0.05, token(" two"), 5.0)) as server:
            sender = sender_for(server, sent)
            sender.submit(post(0))
            work(sender)
            sender.submit(post(1))
            work(sender, until=lambda: bool(sender._under_way) and under_way(sender).stream.text_count == 1)

            assert not under_way(sender).connection.gathers
            work(sender, until=lambda: bool(under_way(sender).later))
            sender.close()

    def test_after_a_finish_that_ends_like_the_others_anything_wakes_us(self) -> None:
        sent: list[Sent] = []
        go_on, is_over = threading.Event(), threading.Event()

        def script(peer: Peer) -> None:
            peer.request()
            peer.send(HEAD + finish_first("one") + finish_first(" two", "length") + USAGE + END)
            peer.request()
            peer.send(HEAD + finish_first("one"))
            go_on.wait(PATIENCE_S)
            peer.send(finish_first(" two") + finish_first(" three") + finish_first(" end", "length"))
            peer.pause(0.05)
            peer.send(END)
            is_over.wait(2 * PATIENCE_S)

        with ScriptedServer(script) as server:
            sender = sender_for(server, sent)
            sender.submit(post(0))
            work(sender)
            sender.submit(post(1))
            work(sender, until=lambda: bool(sender._under_way) and under_way(sender).connection.gathers)
            sender._tidy_at = time.perf_counter() + 2 * PATIENCE_S
            go_on.set()
            try:
                work(sender)
            finally:
                is_over.set()
                sender.close()

        assert sent[1].result.text == "one two three end"


class TestReadingLater:
    WORDS = tuple(f" word{index}" for index in range(20))

    @pytest.mark.parametrize("odd", ["", ' "quoted"', " caf\u00e9"])
    def test_a_cut_stream_keeps_every_word_that_came(self, odd: str) -> None:
        words = (*self.WORDS[:7], odd, *self.WORDS[7:])
        steps = [step for word in words for step in (token(word), 0.002)]
        (sent,), _ = ask(once(HEAD, *steps))

        assert (sent.result.outcome, sent.result.text) == (Outcome.CUT, "".join(words))

    def test_a_finish_that_ends_like_the_others_has_its_own_time(self) -> None:
        steps = [step for word in self.WORDS for step in (finish_first(word), 0.002)]
        (sent,), _ = ask(once(HEAD, *steps, finish_first(" end", "stop"), 0.05, USAGE + END))

        assert sent.result.text == "".join(self.WORDS) + " end"
        assert sent.result.last_token_s is not None
        assert sent.result.last_token_s < sent.end - 0.02
