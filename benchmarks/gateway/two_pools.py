"""The gateway in front of two real servers, from a study: its baseline, its best arm, its policy.

`python benchmarks/gateway/two_pools.py STUDY --arm ARM --rows rows.jsonl` launches both servers as the study did,
with the same threads and memory, puts the gateway in front of them with the study's own policy, and has pools.py
measure all traffic to one, to the other, and through the gateway. Both servers share this machine, so the load that
counts is that of both together.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pools

from speclift.core.arm import BASELINE, Arm
from speclift.engines.build import build_engine
from speclift.engines.protocol import Engine, Server
from speclift.routing.policy import CountedLoad
from speclift.routing.policy_text import policy_toml
from speclift.studies.study import Study
from speclift.verbs.gateway_policy import policy_of_study


@asynccontextmanager
async def launched(engine: Engine, arm: Arm, folder: Path) -> AsyncIterator[Server]:
    server = await engine.launch(arm, log=folder / f"{arm.name}.log")
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def gateway_to(spec: str, plain: str, policy: Path, *flags: str) -> AsyncIterator[str]:
    words = (
        "--spec",
        spec,
        "--plain",
        plain,
        "--policy",
        str(policy),
        "--listen",
        "127.0.0.1:0",
        "--json",
        *flags,
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "speclift", "gateway", *words), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        line = await process.stdout.readline()
        if not line:
            raise SystemExit("the gateway did not start")
        yield f"http://{json.loads(line)['listen']}"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def policy_file(study: Path, folder: Path) -> Path:
    made = policy_of_study(study)
    limit = replace(made.policy.load, counted=CountedLoad.ALL)
    path = folder / "policy.toml"
    path.write_text(policy_toml(replace(made.policy, load=limit), remarks=made.remarks))
    return path


async def run(options: argparse.Namespace) -> list[pools.Row]:
    with Study.open(options.study) as study:
        spec, arms = study.engine, {arm.name: arm for arm in study.plan.arms}
    if options.engine_arg:
        spec = replace(
            spec,
            settings=replace(spec.settings, engine_args=(*spec.settings.engine_args, *options.engine_arg)),
        )
    engine = build_engine(spec)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        policy = options.policy or policy_file(options.study, folder)
        print(policy.read_text())
        arm = arms[options.arm]
        plain = await stack.enter_async_context(launched(engine, arms[BASELINE], folder))
        speculative = await stack.enter_async_context(launched(engine, arm, folder))
        urls = plain.endpoint.base_url, speculative.endpoint.base_url
        flags = ("--access-log", str(options.access_log)) if options.access_log else ()
        options.plain, options.spec = urls
        options.gateway = await stack.enter_async_context(gateway_to(urls[1], urls[0], policy, *flags))
        options.model = plain.endpoint.model
        options.extra_body = plain.endpoint.extra_body
        return await pools.measured(options)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path)
    parser.add_argument("--arm", required=True, help="the study's, that the speculative server runs")
    parser.add_argument("--policy", type=Path, help="another than the study's own")
    parser.add_argument("--engine-arg", action="append", default=[])
    parser.add_argument("--access-log", type=Path)
    pools.add_arguments(parser)
    options = parser.parse_args()
    rows = asyncio.run(run(options))
    pools.write_rows(options.rows, rows)
    print(pools.shown(rows))


if __name__ == "__main__":
    main()
