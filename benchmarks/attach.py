"""Does attach mode tell the truth? Its P50s against a server whose times are known, and against vLLM's own client.

    python benchmarks/attach.py [--repeats 3] [--requests 40]

A fake server (TTFT 50 ms, TPOT 10 ms) runs as somebody else's. speclift attaches at concurrency 1 and 8, `vllm bench
serve` asks the same server at concurrency 1; medians over the repeats are printed as ratios. The server's own log of
when tokens really left stands beside the nominal times: on a busy machine it is the server that is late. Exit status
1 where a bar is missed: 2 % of the truth, 3 % between the two clients. About two minutes each repeat.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "load"))

from tools import OUTPUT, TITLES, TOOLS, Work, environment

TTFT_S, TPOT_S = 0.05, 0.01
TOKENS = 64
LIMIT_S = 300.0
TRUTH_BAR, PEER_BAR = 0.02, 0.03
METRICS = ("ttft", "tpot")
# Tool and streams; the peer stands between the two runs of ours, so that a drifting machine favours nobody.
RUNS = (("speclift", 1), ("vllm-bench", 1), ("speclift", 8))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """P50s in seconds by metric: what the tool says, and when the server really sent."""

    said: dict[str, float]
    sent: dict[str, float]


@contextmanager
def server() -> Iterator[str]:
    truth = ("flavour=vllm", f"ttft_s={TTFT_S}", f"tpot_s={TPOT_S}")
    words = [word for pair in truth for word in ("--truth", pair)]
    process = subprocess.Popen(
        [sys.executable, "-m", "speclift.testing.fake_server", "--port", "0", *words],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield str(json.loads(process.stdout.readline())["url"])
    finally:
        process.terminate()
        process.communicate()


def sent_log(url: str) -> list[dict[str, float]]:
    """The measured requests as the server saw them; warm-ups and probes ask for fewer tokens."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/truth/log") as answer:
        return [entry for entry in json.load(answer) if entry["tokens"] == TOKENS]


def measure(name: str, streams: int, *, url: str, requests: int) -> Seen:
    tool = TOOLS[name]
    work = Work(tokens=TOKENS, tpot_s=TPOT_S, requests=requests, streams=streams)
    known = len(sent_log(url))
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        with (folder / OUTPUT).open("wb") as log:
            done = subprocess.run(
                tool.command(url, work, folder),
                env=environment(),
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=LIMIT_S,
                check=False,
            )
        if done.returncode != 0:
            raise SystemExit(f"{name} failed: {(folder / OUTPUT).read_text()[-1500:]}")
        reported = tool.report(folder)
    if reported.succeeded != requests:
        raise SystemExit(f"{name}: {reported.succeeded} of {requests} requests succeeded")
    entries = sent_log(url)[known:]
    return Seen(
        said={"ttft": reported.ttft_s["p50"] or 0.0, "tpot": reported.tpot_s["p50"] or 0.0},
        sent={
            "ttft": statistics.median(entry["first_token_s"] - entry["received_s"] for entry in entries),
            "tpot": statistics.median(
                (entry["last_token_s"] - entry["first_token_s"]) / (TOKENS - 1) for entry in entries
            ),
        },
    )


def middle(seen: list[Seen]) -> Seen:
    return Seen(
        said={metric: statistics.median(each.said[metric] for each in seen) for metric in METRICS},
        sent={metric: statistics.median(each.sent[metric] for each in seen) for metric in METRICS},
    )


def report(found: dict[tuple[str, int], Seen]) -> bool:
    """Prints the table; True where every bar holds."""
    nominal = {"ttft": TTFT_S, "tpot": TPOT_S}
    print("| load | client | metric | P50 | against the nominal time | against the server's log |")
    print("|---|---|---|---|---|---|")
    for (name, streams), seen in found.items():
        for metric in METRICS:
            said = seen.said[metric]
            print(
                f"| c={streams} | {TITLES[name]} | {metric.upper()} | {said * 1e3:.3f} ms "
                f"| {said / nominal[metric]:.4f} | {said / seen.sent[metric]:.4f} |"
            )
    ours, peers = found["speclift", 1].said, found["vllm-bench", 1].said
    bars = {
        f"speclift / {name} at c={streams}, {metric.upper()}": (value, bar)
        for metric in METRICS
        for name, streams, value, bar in (
            ("truth", 1, ours[metric] / nominal[metric], TRUTH_BAR),
            ("truth", 8, found["speclift", 8].said[metric] / nominal[metric], TRUTH_BAR),
            ("vllm bench serve", 1, ours[metric] / peers[metric], PEER_BAR),
        )
    }
    for text, (value, bar) in bars.items():
        print(f"{'holds' if abs(value - 1) <= bar else 'MISSED'}: {text}: {value:.4f} (within {bar:.0%})")
    return all(abs(value - 1) <= bar for value, bar in bars.values())


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--repeats", type=int, default=1, help="medians over this many; use 3 on a busy machine"
    )
    parser.add_argument("--requests", type=int, default=40, help="at concurrency 1; twice as many at 8")
    options = parser.parse_args(arguments)
    found: dict[tuple[str, int], list[Seen]] = {run: [] for run in RUNS}
    with server() as url:
        for _ in range(options.repeats):
            for name, streams in RUNS:
                requests = options.requests * (2 if streams > 1 else 1)
                found[name, streams].append(measure(name, streams, url=url, requests=requests))
    print(f"{datetime.now(tz=UTC):%Y-%m-%d}, {options.repeats} repeats of {options.requests} requests")
    return 0 if report({run: middle(seen) for run, seen in found.items()}) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
