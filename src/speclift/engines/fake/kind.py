"""The fake engine: one arm unless a search is wanted."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from speclift.core.arm import Arm, Endpoint, ServerSettings
from speclift.core.engine_spec import EngineSpec
from speclift.core.errors import EngineError
from speclift.core.json_reading import need_objects
from speclift.core.results import Finding
from speclift.core.speculation import NGram, Suffix, drafters_of, require_no_extra
from speclift.engines.kind import EngineKind
from speclift.engines.probe import judge_probe, probe_body
from speclift.engines.process import LaunchedServer, ServerProcess, free_port
from speclift.engines.vllm.dialect.tables import SCHEDULE
from speclift.lossless.soak.prompts import SoakDialect
from speclift.testing.fake_dialect import MODEL
from speclift.testing.fake_truth import parse_truth

READY_LIMIT_S = 15.0
ASKED_MODEL = "fake-model"  # whatever is asked for, it serves one
# The share by which a step takes longer on a server that does not schedule the next one ahead.
UNSCHEDULED_COST = "unscheduled_cost="
TRUTH_OF_MACHINE = "SPECLIFT_FAKE_TRUTH"
STEP_COUNTS: tuple[tuple[str, object], ...] = (("timings_per_token", True),)


class Fake:
    name = "fake"
    samples_wrongly = ""
    launches_at_once = 1

    def __init__(self, settings: ServerSettings, *, ready_limit_s: float = READY_LIMIT_S) -> None:
        self.settings = settings
        self.model = settings.model
        costs = [arg for arg in settings.engine_args if arg.startswith(UNSCHEDULED_COST)]
        of_machine = [pair for pair in os.environ.get(TRUTH_OF_MACHINE, "").split(",") if pair]
        self._truth_args = (*(arg for arg in settings.engine_args if arg not in costs), *of_machine)
        self._unscheduled_cost = float(costs[-1].removeprefix(UNSCHEDULED_COST)) if costs else 0.0
        self._ready_limit_s = ready_limit_s
        # Each launch is its own draw of what varies from start to start.
        self._starts = itertools.count(1)
        self._launches: Counter[str] = Counter()

    def version(self) -> str:
        return "fake 1"

    def truth_pairs(self, arm: Arm) -> tuple[str, ...]:
        pairs = [f"k={arm.k}", *_schedule(arm)] if arm.speculates else []
        for pair in self._truth_args:
            side, dot, rest = pair.partition(".")
            if not dot or "=" in side or side == "acceptance":
                pairs.append(pair)
            elif side == arm.name or (side == "spec" and arm.speculates):
                pairs.append(rest)
        if self._unscheduled_cost and not self._schedules_ahead(arm):
            pairs.append(f"tpot_s={parse_truth(pairs).tpot_s * (1 + self._unscheduled_cost)}")
        return tuple(pairs)

    def risks(self, arms: Sequence[Arm]) -> tuple[Finding, ...]:
        return ()

    def loses_scheduling(self, arm: Arm) -> bool:
        """As vLLM does, where the fake is told what scheduling ahead is worth."""
        is_up_to_it = self._unscheduled_cost > 0 and self.settings.async_scheduling is None
        return is_up_to_it and not self._schedules_ahead(arm)

    def _schedules_ahead(self, arm: Arm) -> bool:
        drafts_between_steps = any(isinstance(each, NGram | Suffix) for each in drafters_of(arm.speculation))
        return self.settings.async_scheduling is not False and not drafts_between_steps

    def command(self, arm: Arm, *, port: int) -> tuple[str, ...]:
        self.settings.require_only(("gpu_layers", "async_scheduling"), engine="fake")
        for drafter in drafters_of(arm.speculation):
            own = tuple(pair for pair in drafter.extra if pair[0] != SCHEDULE)
            require_no_extra(structs.replace(drafter, extra=own), engine="fake")
        pairs = self.truth_pairs(arm)
        parse_truth(pairs)  # a mistyped truth is wrong usage, seen before any launch
        truths = itertools.chain.from_iterable(("--truth", pair) for pair in pairs)
        return (sys.executable, "-m", "speclift.testing.fake_server", "--port", str(port), *truths)

    def configurations(self, arm: Arm) -> dict[str, str]:
        return {"command": shlex.join(self.command(arm, port=8080))}

    def config(self, arm: Arm) -> dict[str, object]:
        return {"method": arm.method, "k": arm.k}

    def fits_together(self, arms: tuple[Arm, ...]) -> bool:
        return bool(arms)

    async def launch(self, arm: Arm, *, log: Path) -> LaunchedServer:
        truth = parse_truth(self.truth_pairs(arm))
        start = next(self._starts)
        port = free_port()
        self._launches[arm.name] += 1
        own = (f"seed={truth.seed + start}", f"launch={self._launches[arm.name]}")
        command = (*self.command(arm, port=port), "--truth", own[0], "--truth", own[1])
        process = await ServerProcess.start(command, base_url=f"http://127.0.0.1:{port}", log=log)
        try:
            await process.wait_until_ready(path="/health", limit_s=self._ready_limit_s)
            if truth.flavour == "llamacpp":
                await self._verify(arm, process)
        except BaseException:
            await process.stop()
            raise
        endpoint = Endpoint(base_url=process.base_url, model=ASKED_MODEL, extra_body=STEP_COUNTS)
        return LaunchedServer(process, endpoint=endpoint, command=command)

    async def _verify(self, arm: Arm, process: ServerProcess) -> None:
        slots = need_objects(json.loads(await process.get("/slots")))
        if any(bool(slot["speculative"]) != arm.speculates for slot in slots):
            raise EngineError(
                f"arm {arm.name} needs {arm.method}, but the server runs without it",
                log_tail=process.log_tail(),
            )
        if arm.speculates:
            body = probe_body(ASKED_MODEL, dict(STEP_COUNTS))
            judge_probe(await process.post("/v1/chat/completions", body), arm=arm.name)


def _schedule(arm: Arm) -> list[str]:
    """vLLM's k by batch size, in the form of a truth."""
    triples = [
        json.loads(value)
        for drafter in drafters_of(arm.speculation)
        for key, value in drafter.extra
        if key == SCHEDULE
    ]
    return [f"schedule={'/'.join(f'{start}-{end}:{k}' for start, end, k in each)}" for each in triples]


class FakeKind(EngineKind):
    name = "fake"
    launch_guess_s = 0.5
    searches_unasked = False
    reuses_prompts = False
    schedule_key = SCHEDULE
    honours_seeds = True

    def parts(self) -> dict[str, str]:
        return {}

    def soak_dialect(self, version: str) -> SoakDialect:
        return SoakDialect.LLAMACPP

    def served_model(self, settings: ServerSettings) -> str:
        return MODEL

    def build(self, spec: EngineSpec, settings: ServerSettings, *, version: str | None) -> Fake:
        return Fake(settings)


KIND = FakeKind()
