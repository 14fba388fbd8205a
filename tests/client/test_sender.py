"""Requests over real sockets: what is sent when, on which connection, and which times it gets."""

from __future__ import annotations

import select
import socket
import ssl
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
from scripted import Peer, ScriptedServer
from sending import (
    ANSWER,
    END,
    HEAD,
    PATIENCE_S,
    USAGE,
    answering,
    ask,
    once,
    post,
    sender_for,
    token,
    work,
)

from processes import eventually
from speclift.client import sender as sender_module
from speclift.client.connection import ask_for_stamps, moment_of, receive_stamped
from speclift.client.exchange import Sent
from speclift.client.sender import Sender
from speclift.core.records import Outcome

CERTIFICATE = Path(__file__).parent.parent / "recorded" / "localhost-test-certificate.pem"


class TestAnswers:
    def test_a_stream_becomes_text_counts_and_times_in_order(self) -> None:
        (sent,), _ = ask(once(HEAD + token("one"), 0.01, token(" two", "length"), USAGE + END))
        result = sent.result

        assert (result.outcome, result.text, result.output_tokens) == (Outcome.OK, "one two", 2)
        assert result.first_token_s is not None
        assert result.last_token_s is not None
        assert sent.intended == sent.sent < result.first_token_s < result.last_token_s <= sent.end

    def test_many_chunks_alike_give_their_whole_text_and_the_last_ones_time(self) -> None:
        words = [f" word{index}" for index in range(30)]
        steps = [step for word in words for step in (token(word), 0.002)]
        (sent,), _ = ask(once(HEAD, *steps, token(" end", "length") + END))

        assert sent.result.text == "".join(words) + " end"
        assert sent.result.last_token_s == sent.end


class TestLoads:
    def test_no_more_streams_than_asked_for_are_under_way(self) -> None:
        lock, under_way, most = threading.Lock(), [0], [0]
        all_streams = threading.Barrier(3, timeout=PATIENCE_S)

        def script(peer: Peer) -> None:
            while peer.request() is not None:
                with lock:
                    under_way[0] += 1
                    most[0] = max(most[0], under_way[0])
                all_streams.wait()
                peer.pause(0.01)
                with lock:
                    under_way[0] -= 1
                peer.send(ANSWER)

        sent: list[Sent] = []
        with ScriptedServer(script) as server:
            sender = sender_for(server, sent)
            sender.begin(streams=3)
            for index in range(12):
                sender.submit(post(index))
            work(sender)
            sender.close()

            assert sorted(each.id for each in sent) == list(range(12))
            assert most[0] == 3
            assert server.connections == 3

    @pytest.mark.slow
    def test_timed_requests_go_out_at_their_moment_whether_or_not_others_ended(self) -> None:
        sent: list[Sent] = []
        with ScriptedServer(once(0.3, ANSWER)) as server:
            sender = sender_for(server, sent)
            start = time.perf_counter() + 0.02
            moments = [start + 0.01 * index for index in range(5)]
            for index, moment in enumerate(moments):
                sender.submit(post(index, moment))
            work(sender)
            sender.close()

        assert [each.intended for each in sorted(sent, key=lambda each: each.id)] == moments
        assert all(each.sent >= each.intended for each in sent)
        assert max(each.sent for each in sent) < min(each.end for each in sent)

    @pytest.mark.slow
    @pytest.mark.skipif(sys.platform != "linux", reason="reads gather where stamps are the kernel's")
    def test_what_falls_due_while_reads_gather_is_sent_meanwhile(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sender_module, "OPEN_LOOP_PAUSE_S", 0.3)
        monkeypatch.setattr(sender_module, "CROWD", 1)
        sent: list[Sent] = []
        with ScriptedServer(once(HEAD + token("one"), PATIENCE_S)) as server:
            sender = sender_for(server, sent)
            sender.submit(post(0))
            work(sender, until=lambda: any(each.stream.text_count for each in sender._under_way.values()))
            now = time.perf_counter()
            for index in range(1, 6):
                sender.submit(post(index, now + 0.02 * index))
            sender.turn(0.0)

            assert sender.unsent_count == 0
            sender.close()

    def test_what_is_due_but_finds_no_descriptor_does_not_keep_the_processor_busy(self) -> None:
        with ScriptedServer(once(PATIENCE_S)) as server:
            sender = sender_for(server, [], connections_max=1)
            for index in range(2):
                sender.submit(post(index, time.perf_counter()))
            work(sender, until=lambda: server.connections == 1)
            moments = [time.perf_counter()]
            # The first may still have the connection to see to.
            for _ in range(3):
                sender.turn(0.03)
                moments.append(time.perf_counter())
            sender.close()

        assert max(later - earlier for earlier, later in pairwise(moments)) >= 0.02

    def test_beyond_the_descriptors_requests_wait_and_their_lateness_shows(self) -> None:
        sent: list[Sent] = []
        with ScriptedServer(once(0.05, ANSWER)) as server:
            sender = sender_for(server, sent, connections_max=1)
            due = time.perf_counter()
            for index in range(2):
                sender.submit(post(index, due))
            work(sender)
            sender.close()

        assert [each.result.outcome for each in sent] == [Outcome.OK] * 2
        assert sent[1].sent - sent[1].intended >= 0.05


def kernel_stamps() -> bool:
    """Whether packets get the time they arrive: the kernel begins with that a while after it was asked to."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as there,
    ):
        here.bind(("127.0.0.1", 0))
        ask_for_stamps(here)
        there.sendto(b"x", here.getsockname())
        select.select([here], [], [], PATIENCE_S)
        time.sleep(0.01)
        before = time.perf_counter()
        _, stamp = receive_stamped(here)
        return moment_of(stamp) < before


def wait_for_bytes(sender: Sender) -> None:
    """Until something lies unread on the connection of its one request."""
    (fd,) = sender._under_way
    assert select.select([fd], [], [], PATIENCE_S)[0]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's time stamps are Linux's")
class TestTimeStamps:
    def test_bytes_that_lie_unread_keep_the_time_they_arrived(self) -> None:
        sent: list[Sent] = []
        asked, answer = threading.Event(), threading.Event()

        def script(peer: Peer) -> None:
            peer.request()
            asked.set()
            answer.wait(PATIENCE_S)
            peer.send(HEAD + token("one"))
            peer.request()

        with ScriptedServer(script) as server:
            sender = sender_for(server, sent)
            eventually(kernel_stamps, what="packets are stamped")
            sender.begin(streams=1)
            sender.submit(post())
            work(sender, until=asked.is_set)
            began = time.perf_counter()
            answer.set()
            wait_for_bytes(sender)
            time.sleep(0.1)
            looked = time.perf_counter()
            sender.turn(0.0)
            lag_s, blur_s = sender.lateness.lag_p99_s, sender.lateness.blur_p99_s
            (exchange,) = sender._under_way.values()
            first_s = exchange.stream.result().first_token_s
            sender.close()

        assert first_s is not None
        assert first_s < looked - 0.05
        assert 0.05 < lag_s < time.perf_counter() - began
        # One token in one packet: its time is right however late it was read.
        assert blur_s == 0.0

    def test_tokens_read_together_are_reported_as_blurred(self) -> None:
        sent: list[Sent] = []
        asked, answer = threading.Event(), threading.Event()

        def script(peer: Peer) -> None:
            peer.request()
            asked.set()
            answer.wait(PATIENCE_S)
            peer.send(HEAD + token("one") + token(" two", "length") + END)

        with ScriptedServer(script) as server:
            sender = sender_for(server, sent)
            eventually(kernel_stamps, what="packets are stamped")
            sender.begin(streams=1)
            sender.submit(post())
            work(sender, until=asked.is_set)
            began = time.perf_counter()
            answer.set()
            wait_for_bytes(sender)
            time.sleep(0.1)
            work(sender)
            blur_s = sender.lateness.blur_p99_s
            sender.close()

        assert sent[0].result.text == "one two"
        assert 0.05 < blur_s < time.perf_counter() - began


class TestTls:
    @staticmethod
    def serving() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        return context

    def test_streams_and_keeps_alive_as_without_it(self) -> None:
        sent: list[Sent] = []
        with ScriptedServer(answering(ANSWER), tls=self.serving()) as server:
            sender = sender_for(server, sent, tls=ssl.create_default_context(cafile=CERTIFICATE))
            for index in range(3):
                sender.submit(post(index))
                work(sender)
            sender.close()

            assert [each.result.text for each in sent] == ["one two"] * 3
            assert server.connections == 1
