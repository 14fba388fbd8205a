"""How fast is replay, and does it stay small? Tokens per second of one core on token ids, memory on growing logs.

    python benchmarks/replay.py [--answers 2000] [--prompt 512] [--response 256] [--seed 1] [--log-mb 64] [--json]

Synthetic traffic: answers copy stretches of their prompt for about a third of their tokens. Exits 1 where n-gram
at k=5 is below a million tokens per second, or where a log four times as long takes more than 1.1 times the memory.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from speclift.bench.log_counting import BATCH_TOKENS, log_drafters
from speclift.replayer.counts import LoggedAnswer, batch_of
from speclift.replayer.methods import DrafterSetting, replay_of, settings_for
from speclift.verbs.replay import replay
from trials import trial_options

TOKENS_PER_S_MIN = 1e6
MEMORY_GROWTH_MAX = 1.1
VOCABULARY = 50_000
COPIED_SHARE = 0.3
REPEATS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    drafter: str
    ks: int
    tokens_per_s: float
    response_tokens_per_s: float
    accepted_length: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    log_mb: float
    peak_mb: float
    tokens_per_s: float


def answers(count: int, *, prompt: int, response: int, seed: int) -> list[LoggedAnswer]:
    random = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        # Words of a text are about Zipf-distributed, so short n-grams recur by chance as they do in prose.
        asked = random.zipf(1.2, prompt) % VOCABULARY
        said: list[int] = []
        while len(said) < response:
            if random.random() < COPIED_SHARE:
                start = int(random.integers(0, prompt - 8))
                said += asked[start : start + int(random.integers(4, 24))].tolist()
            else:
                said += (random.zipf(1.2, int(random.integers(4, 24))) % VOCABULARY).tolist()
        made.append(
            LoggedAnswer(prompt=asked, response=np.array(said[:response], dtype=np.int64), segment="all")
        )
    return made


def speed(setting: DrafterSetting, made: Sequence[LoggedAnswer]) -> Speed:
    tokens, responses = sum(each.tokens for each in made), sum(len(each.response) for each in made)
    per_batch = max(BATCH_TOKENS // made[0].tokens, 1)
    best_s, decoded, steps = float("inf"), 0, 0
    for _ in range(REPEATS):
        drafter = replay_of(setting)
        started_s = time.perf_counter()
        decoded = steps = 0
        for start in range(0, len(made), per_batch):
            part = made[start : start + per_batch]
            last = drafter.counts(batch_of(part), part)[-1]
            decoded, steps = decoded + int(last.decoded.sum()), steps + int(last.steps.sum())
        best_s = min(best_s, time.perf_counter() - started_s)
    return Speed(
        drafter=f"{setting.engine} {setting.method} n={setting.n}",
        ks=len(setting.ks),
        tokens_per_s=tokens / best_s,
        response_tokens_per_s=responses / best_s,
        accepted_length=decoded / steps,
    )


def memory(log_mb: float, made: Sequence[LoggedAnswer], folder: Path) -> Memory:
    """A process of its own: the peak of a process never falls."""
    log = folder / f"{log_mb:g}.jsonl"
    lines = [
        json.dumps({"prompt_token_ids": each.prompt.tolist(), "response_token_ids": each.response.tolist()})
        for each in made
    ]
    with log.open("w", encoding="utf-8") as file:
        written = 0
        while written < log_mb * 1e6:
            for line in lines:
                written += file.write(line + "\n")
    child = subprocess.run(
        [sys.executable, __file__, "--replay-log", str(log)], capture_output=True, text=True, check=True
    )
    log.unlink()
    return Memory(log_mb=written / 1e6, **json.loads(child.stdout))


def replay_log(log: Path) -> None:
    started_s = time.perf_counter()
    result = replay([log], ks=(5,), ngrams=(3,))
    took_s = time.perf_counter() - started_s
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(json.dumps({"peak_mb": peak_mb, "tokens_per_s": result.log.tokens / took_s}))


def main() -> int:
    options = trial_options(
        str(__doc__), seed=1, answers=2000, prompt=512, response=256, log_mb=64.0, replay_log="", json=False
    )
    if options.replay_log:
        replay_log(Path(options.replay_log))
        return 0
    made = answers(options.answers, prompt=options.prompt, response=options.response, seed=options.seed)
    say: Callable[[str], None] = (lambda _text: None) if options.json else print
    speeds = []
    for methods, ks in (
        (("ngram", "ngram:gpu", "ngram:simple"), (5,)),
        (("ngram", "ngram:simple"), tuple(range(1, 17))),
        (("ngram:map-k", "ngram:map-k4v", "ngram:mod", "ngram:cache"), (5,)),
    ):
        for setting in settings_for(methods, log_drafters(), engine=None, ks=ks, ngrams=(3,)):
            found = speed(setting, made)
            speeds.append(found)
            say(
                f"{found.drafter:32} {found.ks:2} k  {found.tokens_per_s / 1e6:6.2f} M tokens/s "
                f"({found.response_tokens_per_s / 1e6:.2f} M of responses), length {found.accepted_length:.2f}"
            )
    with tempfile.TemporaryDirectory() as folder:
        sizes = (options.log_mb / 4, options.log_mb)
        memories = [memory(size, made[:200], Path(folder)) for size in sizes]
    for each in memories:
        say(
            f"log of {each.log_mb:.0f} MB: peak {each.peak_mb:.0f} MB, "
            f"{each.tokens_per_s / 1e6:.2f} M tokens/s with JSON read"
        )
    if options.json:
        rows = {"speed": [asdict(each) for each in speeds], "memory": [asdict(each) for each in memories]}
        print(json.dumps(rows, indent=2))
    is_fast = all(each.tokens_per_s >= TOKENS_PER_S_MIN for each in speeds[:2])
    return 0 if is_fast and memories[1].peak_mb <= MEMORY_GROWTH_MAX * memories[0].peak_mb else 1


if __name__ == "__main__":
    sys.exit(main())
