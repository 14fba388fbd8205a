"""The lossless gate on a GPU: does a clean vLLM pass, is a rare fault still caught, do batch-invariant kernels agree?

    PYTHONPATH=src python benchmarks/gpu/gate.py --python VLLM_PYTHON --model FOLDER --draft FOLDER --out OUT

Servers are launched as `decide` launches them, without and with batch-invariant kernels, and stay up; every run is a
`speclift decide --engine attach --verify quick` at 1 and 16 streams on 16 prompts of its own, with the arm as it is and
behind a proxy that replaces one chunk of text in 200. `verify` at temperature 0 compares the servers with such kernels;
with `--soak 5m` it asks others at temperatures 0 and 1 and puts them under fire. Seven to nine minutes on an H200 with
all of it at once; OUT/gate.json has what each run said.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from corrupting_proxy import proxy
from speclift.bench.asking import ask_all
from speclift.core.arm import Arm, Endpoint, ServerSettings, baseline_arm
from speclift.core.engine_spec import EngineSpec
from speclift.core.errors import EngineError
from speclift.core.speculation import DraftModel, NGram
from speclift.core.traffic import Request
from speclift.engines.build import build_engine
from speclift.engines.protocol import Server
from speclift.lossless.divergence import compare
from speclift.lossless.questions import LISTED, Question
from speclift.studies.prompt_files import bundled_workload

STREAMS = "1,16"
PROMPTS_PER_RUN = 16
TOKENS = 64
# Several servers share the GPU: what each may take, whatever the others do.
SHARED = ("--gpu-memory-utilization=0.05", "--kv-cache-memory-bytes=4G")
RUN_LIMIT_S = 120.0
AGAIN = 20
STREAMS_UNDER_FIRE = "1,4,16"
SOAK_LIMIT_S = 540.0


@dataclass(slots=True)
class Seen:
    """What every run said, by what was asked."""

    runs: dict[str, list[dict[str, object]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, what: str, said: dict[str, object]) -> None:
        self.runs.setdefault(what, []).append(said)
        print(f"{what}: {said['result']}: {said['message']}", flush=True)

    def note(self, text: str) -> None:
        self.notes.append(text)
        print(text, flush=True)


def arms(draft: str) -> tuple[Arm, ...]:
    return (
        Arm(name="ngram", speculation=NGram(n=3, n_min=1, k=4)),
        Arm(name="draft", speculation=DraftModel(model=draft, k=3)),
    )


async def launched(
    stack: AsyncExitStack, options: argparse.Namespace, wanted: Sequence[Arm], *, name: str
) -> dict[str, Server]:
    """All at once; one that does not start is told and left out."""
    settings = ServerSettings(model=options.model, slots=64, engine_args=(*SHARED, *options.engine_arg))
    spec = EngineSpec(kind="vllm", settings=settings, python=options.python)
    engine = build_engine(spec.with_invariant_batches() if name == "invariant" else spec)
    starts = [
        engine.launch(arm, log=options.out / f"{name}-{index}-{arm.name}.log")
        for index, arm in enumerate(wanted)
    ]
    servers: dict[str, Server] = {}
    for index, (arm, started) in enumerate(
        zip(wanted, await asyncio.gather(*starts, return_exceptions=True), strict=True)
    ):
        if isinstance(started, EngineError):
            print(f"{name} {arm.name} did not start: {started}", flush=True)
        elif isinstance(started, BaseException):
            raise started
        else:
            stack.push_async_callback(started.stop)
            servers[arm.name if arm.name not in servers else f"{arm.name}-{index}"] = started
    return servers


async def said_by(*words: str, limit_s: float = RUN_LIMIT_S) -> dict[str, object]:
    """The document of one command."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "speclift", *words, "--json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), limit_s)
    try:
        found: dict[str, object] = json.loads(out)
    except ValueError:
        raise SystemExit(f"{words} said no JSON: {err.decode()[-2000:]}") from None
    return found


async def quick_gate(
    options: argparse.Namespace, name: str, run: int, baseline: str, spec: str
) -> dict[str, object]:
    document = await said_by(
        *("decide", "--engine", "attach", "--baseline-url", baseline, "--spec-url", spec),
        *("--prompts", str(options.out / f"prompts-{run}.jsonl"), "--requests", str(PROMPTS_PER_RUN)),
        *("--concurrency", STREAMS, "--temperature", "0", "--max-tokens", str(TOKENS), "--fixed"),
        *("--verify", "quick", "--seed", str(run), "--study", str(options.out / "studies" / f"{name}-{run}")),
    )
    return gate_of(document["lossless"])


def gate_of(lossless: object) -> dict[str, object]:
    assert isinstance(lossless, dict)
    greedy = lossless.get("greedy") or {}
    sampled = lossless.get("sampled") or {}
    keys = ("tokens", "ties", "wide", "faults", "unknown")
    return {
        "result": lossless["result"],
        "message": greedy.get("message") or sampled.get("message") or "",
        "greedy": {key: greedy.get(key) for key in keys},
        "sampled": {key: sampled.get(key) for key in ("result", "tokens", "message")},
    }


async def lane(options: argparse.Namespace, seen: Seen, arm: str, baseline: Server, server: Server) -> None:
    """One arm with a baseline of its own, so that two lanes do not share a batch."""
    at, spec = baseline.endpoint.base_url, server.endpoint.base_url
    for run in range(options.runs):
        seen.add(f"{arm}, clean", await quick_gate(options, f"{arm}-clean", run, at, spec))
    with proxy(spec, "rarely", seed=7) as corrupted:
        for run in range(options.corrupted):
            said = await quick_gate(options, f"{arm}-corrupted", run, at, corrupted)
            seen.add(f"{arm}, 0.5 % of chunks corrupted", said)


async def soaked(options: argparse.Namespace, seen: Seen, arm: str, baseline: Server, server: Server) -> None:
    """Asked politely at temperatures 0 and 1 first, then under fire."""
    document = await said_by(
        *("verify", "--engine", "attach", "--baseline-url", baseline.endpoint.base_url),
        *(
            "--spec-url",
            server.endpoint.base_url,
            "--soak",
            options.soak,
            "--concurrency",
            STREAMS_UNDER_FIRE,
        ),
        *("--temperature", "0,1", "--study", str(options.out / "studies" / f"{arm}-soak")),
        *(("--leave-out", options.leave_out) if options.leave_out else ()),
        limit_s=SOAK_LIMIT_S,
    )
    (options.out / f"soak-{arm}.json").write_text(json.dumps(document, indent=1))
    seen.add(f"{arm}, asked politely and under fire", gate_of(document))
    soak = document["soak"]
    assert isinstance(soak, dict)
    found = [f"{fault['name']} {fault['count']} of {fault['exposed']}" for fault in soak["faults"]]
    seen.note(f"{arm}, soak: {soak['result']}, {soak['requests']} requests, {soak['seconds']:.0f} s: {found}")


async def equal_under_invariance(seen: Seen, servers: dict[str, Server]) -> None:
    for name in ("ngram", "draft"):
        if name in servers and "baseline" in servers:
            document = await said_by(
                *("verify", "--engine", "attach", "--baseline-url", servers["baseline"].endpoint.base_url),
                *("--spec-url", servers[name].endpoint.base_url, "--temperature", "0", "--concurrency", "16"),
                *("--requests", "48", "--max-tokens", "128"),
            )
            seen.add(f"{name}, batch-invariant kernels", gate_of(document))


async def asked_again(seen: Seen, what: str, requests: Sequence[Request], servers: dict[str, Server]) -> None:
    """The prompts that part when asked alone, each asked again many times: chance, or always the same?"""
    questions = [Question(case=r.id, request=r, temperature=0.0, seed=1) for r in requests]
    listed = [Question(case=r.id, request=r, temperature=0.0, seed=1, listed=LISTED) for r in requests]

    def at(name: str) -> Endpoint:
        return servers[name].endpoint

    references = await ask_all(at("baseline"), listed, at_once=1)
    answers = await ask_all(at("ngram"), questions, at_once=1)
    parted = [compare(*pair).divergence for pair in zip(references, answers, strict=True)]
    seen.note(
        f"{what}: {sum(each is not None for each in parted)} of {len(parted)} prompts part, asked alone"
    )
    for question, reference, divergence in zip(questions, references, parted, strict=True):
        if divergence is None:
            continue
        again = await ask_all(at("ngram"), [question] * AGAIN, at_once=1)
        own = await ask_all(at("baseline"), [question] * AGAIN, at_once=1)
        texts = Counter(answer.text for answer in again)
        differ = sum(answer.text != reference.text for answer in again)
        natural = sum(answer.text != reference.text for answer in own)
        margin = divergence.closest
        seen.note(
            f"  {question.case}: token {divergence.position}, margin "
            f"{'unknown' if margin is None else format(margin, '.3f')} nats; {differ} of {AGAIN} pairs differ "
            f"({len(texts)} texts), baseline against itself {natural} of {AGAIN}"
        )


async def measured(options: argparse.Namespace) -> Seen:
    seen = Seen()
    requests = bundled_workload().requests
    # Neighbours are of one segment: every run gets some of each.
    for run in range(options.runs):
        chosen = requests[run :: len(requests) // PROMPTS_PER_RUN][:PROMPTS_PER_RUN]
        lines = (json.dumps(_line(request)) for request in chosen)
        (options.out / f"prompts-{run}.jsonl").write_text("\n".join(lines) + "\n")
    ngram, draft = arms(options.draft)
    pairs = (baseline_arm(), ngram, draft, baseline_arm())
    async with AsyncExitStack() as stack:
        ordinary, fire, invariant = await asyncio.gather(
            launched(stack, options, () if options.soak_only else pairs, name="ordinary"),
            launched(stack, options, pairs if options.soak else (), name="fire"),
            launched(stack, options, () if options.soak_only else pairs[:3], name="invariant"),
        )
        seen.note(f"up: {list(ordinary)}, under fire {list(fire)}, batch-invariant {list(invariant)}")
        async with asyncio.TaskGroup() as tasks:
            if ordinary:
                tasks.create_task(lane(options, seen, "ngram", ordinary["baseline"], ordinary["ngram"]))
                tasks.create_task(lane(options, seen, "draft", ordinary["baseline-3"], ordinary["draft"]))
            if fire:
                tasks.create_task(soaked(options, seen, "ngram", fire["baseline"], fire["ngram"]))
                tasks.create_task(soaked(options, seen, "draft", fire["baseline-3"], fire["draft"]))
            tasks.create_task(equal_under_invariance(seen, invariant))
        few = requests[:: len(requests) // 24][:24]
        if ordinary:
            await asked_again(seen, "ordinary kernels", few, ordinary)
        if {"baseline", "ngram"} <= set(invariant):
            await asked_again(seen, "batch-invariant kernels", few, invariant)
    return seen


def _line(request: Request) -> dict[str, object]:
    messages = [{"role": message.role, "content": message.content} for message in request.messages]
    said = {"messages": messages} if messages else {"prompt": request.prompt}
    return {"id": request.id, "segment": request.segment, "max_tokens": TOKENS, **said}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", required=True, help="of the environment with vLLM")
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=10, help="of every arm as it is")
    parser.add_argument("--corrupted", type=int, default=10, help="of every arm behind the proxy")
    parser.add_argument(
        "--leave-out", default="", help="of the soak's requests: schema,grammar without a backend"
    )
    parser.add_argument("--soak", default="", help="also a soak of each arm, such as 5m")
    parser.add_argument("--soak-only", action="store_true", help="nothing but the soaks")
    parser.add_argument("--engine-arg", action="append", default=[], help="of every server; repeatable")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    seen = asyncio.run(measured(options))
    (options.out / "gate.json").write_text(json.dumps({"runs": seen.runs, "notes": seen.notes}, indent=1))
    for what, said in seen.runs.items():
        print(f"{what}: {dict(Counter(str(each['result']) for each in said))}")


if __name__ == "__main__":
    main()
