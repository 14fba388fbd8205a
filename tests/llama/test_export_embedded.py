"""The exported rules and dashboard on a real llama.cpp, scraped by a real Prometheus."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from following import copying
from prometheus_server import panels_without_data, running_prometheus, wait_until
from simulated import by_streams, quiet_truth
from speclift.client.client import Client
from speclift.client.clock import now_s
from speclift.core.arm import Arm, ServerSettings
from speclift.core.records import Counters, Place
from speclift.core.speculation import NGram
from speclift.core.traffic import Concurrency, Message, Request
from speclift.engines.llamacpp.engine import LlamaCpp
from speclift.engines.protocol import Server
from speclift.verbs.export import export, write_exported
from written import write_study

pytestmark = [pytest.mark.llama, pytest.mark.prometheus, pytest.mark.slow]

LLAMA = Counters(values={"llamacpp:tokens_predicted_total": 1.0})
WINDOW_S = 8.0


async def ask_on(server: Server) -> None:
    async with Client(server.endpoint, seed=7) as client:
        for number in range(10_000):
            message = Message(role="user", content=copying(number))
            request = Request(id=f"r{number}", messages=(message,), max_tokens=48)
            place = Place(
                arm="any",
                launch=1,
                round=0,
                block=0,
                load=Concurrency(streams=1),
                request_id=request.id,
                segment=request.segment,
                temperature=0.0,
            )
            await client.send(request, place, intended_s=now_s())


def test_every_panel_has_data_and_copied_text_is_seen_to_be_accepted(
    embedded_model: Path, tmp_path: Path
) -> None:
    study = write_study(tmp_path / "s", quiet_truth(by_streams({1: 1.7, 4: 1.4, 16: 0.8})), counters=LLAMA)
    exported = export(study, to="prometheus-rules", window_s=WINDOW_S, memory_s=3600.0)
    rules, _ = write_exported(exported, f"{tmp_path}/rules/")
    dashboard = json.loads(export(study, to="grafana", window_s=WINDOW_S).files[0].text)

    def watch(url: str) -> None:
        with running_prometheus(tmp_path, rules=rules, target=url.removeprefix("http://")) as prometheus:
            wait_until(lambda: prometheus.value("speclift:pays") is not None, "tokens flow")
            length = prometheus.value("speclift:accepted_length")
            assert length is not None
            assert length > 1.2
            assert panels_without_data(dashboard, prometheus) == []

    async def serve() -> None:
        engine = LlamaCpp(ServerSettings(model=str(embedded_model), context_tokens=512, threads=1))
        server = await engine.launch(Arm(name="ngram", speculation=NGram(k=7, n=3)), log=tmp_path / "log")
        asking = asyncio.create_task(ask_on(server))
        try:
            await asyncio.to_thread(watch, server.endpoint.base_url)
        finally:
            asking.cancel()
            await server.stop()

    asyncio.run(serve())
