"""The exported rules and dashboard on a real engine, scraped by a real Prometheus while it answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

from following import copying, traffic
from prometheus_server import panels_without_data, running_prometheus, wait_until
from samples import provenance
from simulated import by_streams, quiet_truth
from speclift.core.arm import Arm, ServerSettings
from speclift.core.engine_spec import EngineSpec
from speclift.engines.protocol import Engine
from speclift.verbs.export import export, write_exported
from written import write_study

WINDOW_S = 15.0
LIMIT_S = 90.0


def check_on(engine: Engine, arm: Arm, settings: ServerSettings, *, folder: Path) -> None:
    """Every panel has data, and copied text is seen to be accepted: by the rules of a study of this engine."""
    known = provenance(engine=engine.name, engine_version=engine.version(), model=settings.model)
    study = write_study(
        folder / "study",
        quiet_truth(by_streams({1: 1.7, 4: 1.4, 16: 0.8})),
        engine=EngineSpec(kind=engine.name, settings=settings),
        provenance=known,
    )
    exported = export(study, to="prometheus-rules", window_s=WINDOW_S)
    rules, _ = write_exported(exported, f"{folder}/rules/")
    dashboard = json.loads(export(study, to="grafana", window_s=WINDOW_S).files[0].text)

    def look(url: str) -> None:
        with running_prometheus(folder, rules=rules, target=url.removeprefix("http://")) as prometheus:
            wait_until(
                lambda: (prometheus.value("speclift:accepted_length") or 0) > 1.2, "copies", limit_s=LIMIT_S
            )
            # Some count only answers that ended.
            wait_until(lambda: not panels_without_data(dashboard, prometheus), "panels", limit_s=LIMIT_S)

    asyncio.run(_while_asked(engine, arm, look, log=folder / "log"))


async def _while_asked(engine: Engine, arm: Arm, look: Callable[[str], None], *, log: Path) -> None:
    server = await engine.launch(arm, log=log)
    try:
        async with traffic(server.endpoint, copying, streams=1, max_tokens=48):
            await asyncio.to_thread(look, server.endpoint.base_url)
    finally:
        await server.stop()
