"""Requests over real sockets: what servers do to connections, and what becomes of the requests on them."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from scripted import Peer, ScriptedServer
from sending import (
    ANSWER,
    HEAD,
    PATIENCE_S,
    answering,
    ask,
    counted,
    free_port,
    once,
    post,
    sender_for,
    token,
    work,
)

from speclift.client import connection as pool_module
from speclift.client.exchange import Sent
from speclift.core.records import Outcome


class TestErrors:
    def test_a_reset_in_mid_stream_is_a_cut_that_keeps_the_text(self) -> None:
        def script(peer: Peer) -> None:
            peer.request()
            peer.send(HEAD + token("one"))
            peer.pause(0.05)
            peer.reset()

        (sent,), _ = ask(script)

        assert (sent.result.outcome, sent.result.text) == (Outcome.CUT, "one")
        assert "Reset" in sent.result.error

    def test_a_port_where_nobody_listens_is_disconnected(self) -> None:
        sent: list[Sent] = []
        sender = sender_for(None, sent)
        sender.submit(post())
        work(sender)
        sender.close()

        assert sent[0].result.outcome is Outcome.DISCONNECTED
        assert "refused" in sent[0].result.error

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
