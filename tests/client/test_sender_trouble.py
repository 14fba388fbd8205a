"""Requests over real sockets: what servers do to connections, and what becomes of the requests on them."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from scripted import Peer, ScriptedServer
from sending import (
    ANSWER,
    END,
    HEAD,
    PATIENCE_S,
    answering,
    ask,
    chunk,
    counted,
    free_port,
    once,
    post,
    sender_for,
    token,
    work,
)

from speclift.client import connection as pool_module
from speclift.client.connection import Poll, Pool
from speclift.client.exchange import Sent
from speclift.core.records import Outcome


class TestErrors:
    @pytest.mark.parametrize(
        ("answer", "error"),
        [
            (
                counted("500 Internal Server Error", b'{"error":{"message":"out of memory"}}'),
                "500: out of memory",
            ),
            (
                counted("502 Bad Gateway", b"<html><title>Bad Gateway</title><h1>nginx</h1></html>"),
                "502: Bad Gateway nginx",
            ),
            (counted("429 Too Many Requests", b""), "429:"),
            (
                counted("307 Temporary Redirect", b"", "Location: https://other.example/v1"),
                "307: moved to https://other.example/v1",
            ),
        ],
        ids=["JSON", "HTML", "nothing", "a redirect"],
    )
    def test_of_http_keep_their_words_and_the_connection(self, answer: bytes, error: str) -> None:
        sent, connections = ask(answering(answer), times=2)

        assert [each.result.outcome for each in sent] == [Outcome.HTTP_ERROR] * 2
        assert sent[0].result.error == error
        assert connections == 1

    def test_in_the_stream_keep_what_came_before(self) -> None:
        (sent,), _ = ask(answering(HEAD + token("one") + chunk({"error": {"message": "oops"}}) + END))

        assert (sent.result.outcome, sent.result.text) == (Outcome.HTTP_ERROR, "one")
        assert "oops" in sent.result.error

    def test_bytes_that_are_not_http_are_malformed(self) -> None:
        (sent,), _ = ask(once(b"SSH-2.0-OpenSSH_9.2\r\n"))

        assert sent.result.outcome is Outcome.MALFORMED
        assert "not an HTTP answer" in sent.result.error

    @pytest.mark.parametrize(
        "steps",
        [(HEAD + token("one"),), (HEAD + token("one"), 0.01, token(" two")[:-9]), (HEAD,), (HEAD[:20],)],
        ids=["after a token", "within a chunk", "after the head", "within the head"],
    )
    def test_an_early_close_is_a_cut(self, steps: tuple[bytes | float, ...]) -> None:
        (sent,), connections = ask(once(*steps))

        assert sent.result.outcome is Outcome.CUT
        assert "closed the connection" in sent.result.error
        assert sent.result.text in ("one", "")
        assert connections == 1

    def test_a_reset_in_mid_stream_is_a_cut_that_keeps_the_text(self) -> None:
        def script(peer: Peer) -> None:
            peer.request()
            peer.send(HEAD + token("one"))
            peer.pause(0.05)
            peer.reset()

        (sent,), _ = ask(script)

        assert (sent.result.outcome, sent.result.text) == (Outcome.CUT, "one")
        assert "Reset" in sent.result.error

    def test_a_server_that_hangs_is_a_timeout_that_keeps_what_came(self) -> None:
        (sent,), _ = ask(once(HEAD + token("one"), 5.0), limit_s=0.2)

        assert (sent.result.outcome, sent.result.text) == (Outcome.TIMEOUT, "one")
        assert sent.end - sent.sent >= 0.2

    def test_a_port_where_nobody_listens_is_disconnected(self) -> None:
        sent: list[Sent] = []
        sender = sender_for(None, sent)
        sender.submit(post())
        work(sender)
        sender.close()

        assert sent[0].result.outcome is Outcome.DISCONNECTED
        assert "refused" in sent[0].result.error

    def test_a_name_that_does_not_resolve_is_disconnected(self) -> None:
        sent: list[Sent] = []
        sender = sender_for(None, sent, host="no-such-host.invalid")
        sender.submit(post())
        work(sender)
        sender.close()

        assert sent[0].result.outcome is Outcome.DISCONNECTED
        assert "gaierror" in sent[0].result.error

    def test_the_next_address_is_tried_where_one_refuses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sent: list[Sent] = []
        with ScriptedServer(answering(ANSWER)) as server:
            places = (
                (socket.AF_INET, ("127.0.0.1", free_port())),
                (socket.AF_INET, ("127.0.0.1", server.port)),
            )
            monkeypatch.setattr(pool_module, "resolve", lambda host, port: places)
            sender = sender_for(server, sent)
            for index in range(2):
                sender.submit(post(index))
                work(sender)
            sender.close()

            assert [each.result.outcome for each in sent] == [Outcome.OK] * 2
            assert server.connections == 1

    def test_an_address_that_answers_is_tried_first_from_then_on(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            good = (socket.AF_INET, listener.getsockname())
            bad = (socket.AF_INET, ("127.0.0.1", free_port()))
            monkeypatch.setattr(pool_module, "resolve", lambda host, port: (bad, good))
            pool = Pool("localhost", 0, tls=None, poll=Poll())
            answering_one = pool.connect(tried=1)
            pool.prefer(answering_one)
            next_one = pool.connect()

            assert (answering_one.address, next_one.address) == (1, 1)
            assert pool.tried_with(next_one) == 1
            assert pool.has_more(tried=1)
            for connection in (answering_one, next_one):
                pool.drop(connection)


class TestStaleConnections:
    def test_a_kept_connection_that_closes_under_a_request_is_replaced_once_with_the_clock_running(
        self,
    ) -> None:
        """llama.cpp does so about once in a hundred streams."""

        def script(peer: Peer) -> None:
            peer.request()
            peer.send(ANSWER)
            if peer.number == 1:
                peer.request()
                peer.pause(0.05)
                peer.reset()

        sent, connections = ask(script, times=2)

        assert [each.result.outcome for each in sent] == [Outcome.OK] * 2
        assert connections == 2
        assert sent[1].result.first_token_s is not None
        assert sent[1].result.first_token_s - sent[1].sent >= 0.05

    def test_a_new_connection_that_closes_is_not_replaced(self) -> None:
        (sent,), connections = ask(lambda peer: (peer.request(), None)[1])

        assert sent.result.outcome is Outcome.DISCONNECTED
        assert connections == 1

    def test_a_second_close_in_a_row_is_a_failure(self) -> None:
        def script(peer: Peer) -> None:
            peer.request()
            if peer.number == 1:
                peer.send(ANSWER)
                peer.request()

        sent, connections = ask(script, times=2)

        assert [each.result.outcome for each in sent] == [Outcome.OK, Outcome.DISCONNECTED]
        assert connections == 2

    def test_one_that_began_to_answer_is_not_asked_again(self) -> None:
        def script(peer: Peer) -> None:
            while peer.request() is not None:
                if peer.number == 1 and not answered:
                    answered.append(1)
                    peer.send(ANSWER)
                else:
                    peer.send(HEAD + token("half"))
                    return

        answered: list[int] = []
        sent, connections = ask(script, times=2)

        assert [each.result.outcome for each in sent] == [Outcome.OK, Outcome.CUT]
        assert connections == 1

    def test_a_connection_closed_while_idle_is_seen_before_it_is_used(self) -> None:
        sent: list[Sent] = []
        with ScriptedServer(once(ANSWER)) as server:
            sender = sender_for(server, sent)
            sender.submit(post())
            work(sender)
            time.sleep(0.05)
            sender.turn(0.05)
            sender.submit(post(1))
            work(sender)
            sender.close()

            assert [each.result.outcome for each in sent] == [Outcome.OK] * 2
            assert server.connections == 2

    def test_a_connection_on_which_the_server_speaks_unasked_is_not_used_again(self) -> None:
        idle, spoken = threading.Event(), threading.Event()

        def script(peer: Peer) -> None:
            peer.request()
            peer.send(ANSWER)
            if peer.number == 1:
                idle.wait(PATIENCE_S)
                peer.send(counted("408 Request Timeout", b""))
                spoken.set()
            answering(ANSWER)(peer)

        sent: list[Sent] = []
        with ScriptedServer(script) as server:
            sender = sender_for(server, sent)
            sender.submit(post())
            work(sender)
            idle.set()
            assert spoken.wait(PATIENCE_S)
            sender.turn(0.05)
            sender.submit(post(1))
            work(sender)
            sender.close()

            assert [each.result.outcome for each in sent] == [Outcome.OK] * 2
            assert server.connections == 2
