"""The gateway in front of two real servers that share this machine: one plain, one that speculates.

From a study: its baseline, one of its arms, its own policy.

    python benchmarks/gateway/two_pools.py STUDY --arm ARM --seconds 900 --rows rows.jsonl

Without one (a GPU machine; here vLLM and a policy that was written beside this file, some eight minutes in all):

    python benchmarks/gateway/two_pools.py --vllm-python VLLM_PYTHON --model SMOLLM2_FOLDER --method ngram,n=3,k=4 \\
        --policy benchmarks/gateway/h200.toml --concurrency 1:2,16,64,128:2 --seconds 340 --workers 2 \\
        --rows rows.jsonl --engine-arg=--gpu-memory-utilization=0.05 --engine-arg=--kv-cache-memory-bytes=4G

Both servers are started together, with the same threads and memory, and both are up in all three ways. The gateway is
put in front of them (`--gateway-arg` adds to its flags), and pools.py measures all traffic to one, to the other, and
through the gateway. The load that counts is that of both servers together. `--first` (as root) lets all of it go before
other work.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parent.parent / "load"))
import pools
from footprint import tree
from pool_ratios import shown

from speclift.core.arm import BASELINE, Arm, ServerSettings
from speclift.core.engine_spec import EngineSpec
from speclift.core.speculation import Off
from speclift.engines.build import build_engine
from speclift.engines.protocol import Engine, Server
from speclift.planner.methods import parse_method
from speclift.routing.policy import CountedLoad
from speclift.routing.policy_text import policy_toml
from speclift.studies.study import Study
from speclift.verbs.gateway_policy import policy_of_study

# Before other work, but not as real-time work, which is held up for a while in every second where it fills a core.
FIRST_NICE = -15


@asynccontextmanager
async def launched(engine: Engine, arms: tuple[Arm, Arm], folder: Path) -> AsyncIterator[tuple[Server, ...]]:
    """Both at once: most of a start is one core's work."""
    starts = [asyncio.create_task(engine.launch(arm, log=folder / f"{arm.name}.log")) for arm in arms]
    try:
        yield tuple(await asyncio.gather(*starts))
    finally:
        for start in starts:
            start.cancel()
        for server in await asyncio.gather(*starts, return_exceptions=True):
            if not isinstance(server, BaseException):
                await server.stop()


@asynccontextmanager
async def gateway_to(spec: str, plain: str, policy: Path, *flags: str) -> AsyncIterator[tuple[str, int]]:
    """Where it listens, and its process."""
    words = (
        *("--spec", spec, "--plain", plain, "--policy", str(policy)),
        *("--listen", "127.0.0.1:0", "--json", *flags),
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "speclift", "gateway", *words), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        line = await process.stdout.readline()
        if not line:
            raise SystemExit("the gateway did not start")
        print(line.decode().strip(), flush=True)
        yield f"http://{json.loads(line)['listen']}", process.pid
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


def compared(options: argparse.Namespace) -> tuple[EngineSpec, tuple[Arm, Arm]]:
    """The engine, the plain arm and the one that speculates."""
    if options.study is None:
        settings = ServerSettings(model=options.model, slots=max(options.concurrency))
        spec = EngineSpec(kind="vllm", settings=settings, python=options.vllm_python)
        arms = (
            Arm(name=BASELINE, speculation=Off()),
            Arm(name="spec", speculation=parse_method(options.method)),
        )
    else:
        with Study.open(options.study) as study:
            spec, by_name = study.engine, {arm.name: arm for arm in study.plan.arms}
        arms = by_name[BASELINE], by_name[options.arm]
    engine_args = (*spec.settings.engine_args, *options.engine_arg)
    return replace(spec, settings=replace(spec.settings, engine_args=engine_args)), arms


async def go_first() -> None:
    """All that was started here. Linux weighs sessions against each other, and niceness only within one, so each
    session has to be put first by itself; servers and senders are started in sessions of their own."""
    while True:
        for pid in tree(os.getpid()):
            # Whoever has just ended needs nothing more.
            with suppress(OSError):
                Path(f"/proc/{pid}/autogroup").write_text(str(FIRST_NICE))
                os.setpriority(os.PRIO_PROCESS, pid, FIRST_NICE)
        await asyncio.sleep(1)


async def run(options: argparse.Namespace) -> pools.Measuring:
    spec, arms = compared(options)
    async with AsyncExitStack() as stack:
        if options.first:
            stack.callback(asyncio.create_task(go_first()).cancel)
        folder = Path(stack.enter_context(TemporaryDirectory()))
        policy = options.policy or policy_file(options.study, folder)
        print(policy.read_text(), flush=True)
        servers = await stack.enter_async_context(launched(build_engine(spec), arms, folder))
        plain, speculative = (server.endpoint for server in servers)
        print("both servers are up", flush=True)
        options.plain, options.spec = plain.base_url, speculative.base_url
        options.gateway, options.gateway_pid = await stack.enter_async_context(
            gateway_to(speculative.base_url, plain.base_url, policy, *options.gateway_arg)
        )
        options.model, options.extra_body = plain.model, plain.extra_body
        return await pools.measured(options)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path, nargs="?")
    parser.add_argument("--arm", help="the study's, that the speculative server runs")
    parser.add_argument("--vllm-python", help="without a study: of the environment with vLLM")
    parser.add_argument("--model", help="without a study: the model's folder")
    parser.add_argument(
        "--method", default="ngram,n=3,k=4", help="without a study: how the second server speculates"
    )
    parser.add_argument("--policy", type=Path, help="another than the study's own")
    parser.add_argument("--engine-arg", action="append", default=[], help="to both servers")
    parser.add_argument("--gateway-arg", action="append", default=[], help="to the gateway")
    parser.add_argument("--first", action="store_true", help="before other work, as root")
    pools.add_arguments(parser)
    options = parser.parse_args()
    has_engine = options.vllm_python and options.model and options.policy
    if not (options.arm if options.study else has_engine):
        parser.error("STUDY with --arm, or --vllm-python, --model and --policy")
    # Not in every offline environment; the native sampler always is.
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    measuring = asyncio.run(run(options))
    print(f"without text or failed, by way: {dict(measuring.lost)}")
    print(pools.use_shown(measuring.use), shown(measuring.rows), sep="\n\n")


if __name__ == "__main__":
    main()
