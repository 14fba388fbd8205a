"""Makes the draft model, from the target's file to the draft's weights, in one run on one GPU.

    python training/draft/train.py --target smollm2-135m-q4_0.gguf --tokenizer tokenizer.json --minutes 24 --out made/

Needs PyTorch 2.11, tokenizers and gguf. A third of the time the target writes, the rest the students read. Both run as
several processes on the one card: a model this small leaves it idle between the kernels that one process starts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.multiprocessing as mp
from tokenizers import Tokenizer

from distil import (
    Recipe,
    Student,
    Text,
    accepted_length,
    agreement,
    batches,
    learn,
    load_texts,
    new_student,
    save_texts,
)
from llama import Llama, Shape, read_target
from practice import (
    Prompt,
    chat_text,
    code_blocks,
    material_prompts,
    prompts_on,
    user_turn,
    without_overlap,
)

EVALUATION = Path(__file__).parents[2] / "src" / "speclift" / "workload" / "bundled"
LONGEST = 704
# Half of the answers are the target's likeliest: that is what the draft is first used for.
TEMPERATURES = (0.0, 0.0, 0.0, 0.0, 0.3, 0.7, 0.7, 1.0)
HELD_OUT_PER_KIND = 96
DRAFT = Shape(vocabulary=49152, width=256, layers=4, heads=4, kv_heads=2, feed_forward=768)
RECIPES = (
    Recipe(name="kl", shape=DRAFT, muon=True),
    Recipe(name="variation", shape=DRAFT, distance_from=0.5, muon=True),
    Recipe(name="variation-sharp", shape=DRAFT, distance_from=0.5, sharpness=2.0, muon=True),
)
# After these shares of the training the student that agrees least is sent home.
CUTS = (0.3, 0.45)


class Writer:
    """The target, writing."""

    def __init__(self, target: Llama, tokenizer: Tokenizer, cache_tokens: int, log: Log) -> None:
        self.target, self.tokenizer, self.cache_tokens, self.log = target, tokenizer, cache_tokens, log
        self.end = tokenizer.token_to_id("<|im_end|>")

    def write(self, prompts: Sequence[Prompt], temperatures: Sequence[float], until: float) -> list[Text]:
        """In groups of like prompts; stops at `until`, wherever that is."""
        encoded = self.tokenizer.encode_batch(
            [chat_text(prompt.messages) for prompt in prompts], add_special_tokens=False
        )
        heads = [each.ids for each in encoded]
        fits = [n for n in range(len(prompts)) if len(heads[n]) + prompts[n].max_tokens <= LONGEST]
        groups: list[list[int]] = [[]]
        for n in sorted(fits, key=lambda n: (prompts[n].max_tokens, len(heads[n]))):
            room = (len(groups[-1]) + 1) * (len(heads[n]) + prompts[n].max_tokens)
            if groups[-1] and (
                room > self.cache_tokens or prompts[groups[-1][0]].max_tokens != prompts[n].max_tokens
            ):
                groups.append([])
            groups[-1].append(n)
        random.Random(0).shuffle(groups)
        texts: list[Text] = []
        for group in groups:
            if time.time() > until:
                break
            answers = self.target.sample(
                [heads[n] for n in group],
                [temperatures[n] for n in group],
                max_tokens=prompts[group[0]].max_tokens,
                end=self.end,
            )
            torch.cuda.empty_cache()
            for n, answer in zip(group, answers, strict=True):
                closing = [self.end] if len(answer) < prompts[n].max_tokens else []
                texts.append(
                    Text(
                        kind=prompts[n].kind,
                        tokens=np.array([*heads[n], *answer, *closing], dtype=np.uint16),
                        prompt_length=len(heads[n]),
                        temperature=temperatures[n],
                    )
                )
        self.log(f"wrote {len(texts)} answers, {sum(len(t.tokens) - t.prompt_length for t in texts)} tokens")
        return texts

    def user_messages(self, count: int) -> list[str]:
        head = self.tokenizer.encode(user_turn(), add_special_tokens=False).ids
        said: list[list[int]] = []
        rows = 2048
        for _ in range(0, count, rows):
            said += self.target.sample([head] * rows, [0.8] * rows, max_tokens=160, end=self.end)
        texts = {self.tokenizer.decode(answer).strip() for answer in said if len(answer) < 160}
        kept = sorted(text for text in texts if 15 < len(text) < 700)
        self.log(f"{len(kept)} user messages of {len(said)}; for example {kept[len(kept) // 2]!r}")
        return kept

    def answer_of(self, text: Text) -> str:
        return str(self.tokenizer.decode(text.tokens[text.prompt_length :])).strip()


class Log:
    def __init__(self, out: Path, name: str, started: float) -> None:
        self.path, self.name, self.started = out / "log.txt", name, started

    def __call__(self, line: str) -> None:
        stamped = f"{time.time() - self.started:7.1f} s  {self.name}: {line}"
        print(stamped, flush=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(stamped + "\n")


def corpus(
    writer: Writer, *, until: float, size: int, held_out: int, seed: int, log: Log
) -> tuple[list[Text], list[Text]]:
    """What to learn on, and greedy answers to `held_out` prompts on other material to choose by."""
    count = max(64, size // 10)
    material = writer.write(material_prompts(count, seed), [0.9] * count, until=float("inf"))
    random.Random(seed).shuffle(material)
    users = writer.user_messages(count)
    apart, said_apart = len(material) // 20, len(users) // 20

    def prompts(texts: Sequence[Text], messages: Sequence[str], count: int, seed: int) -> list[Prompt]:
        answers = [(text.kind, writer.answer_of(text)) for text in texts]
        passages = [answer for kind, answer in answers if kind == "passage" and 80 < len(answer) < 1000]
        codes = [block for kind, answer in answers if kind == "code-writing" for block in code_blocks(answer)]
        asked = list(
            without_overlap(prompts_on(passages, codes, messages, count=count, seed=seed), EVALUATION)
        )
        log(f"{len(passages)} passages, {len(codes)} pieces of code, {len(asked)} of {count} prompts kept")
        return asked

    asked = prompts(material[:apart], users[:said_apart], held_out, seed + 1) if held_out else []
    by_kind: dict[str, list[Text]] = defaultdict(list)
    for text in writer.write(asked, [0.0] * len(asked), until=float("inf")) if asked else []:
        if len(text.tokens) - text.prompt_length > 16:
            by_kind[text.kind].append(text)
    asked = prompts(material[apart:], users[said_apart:], size, seed + 2)
    draw = random.Random(seed)
    texts = writer.write(asked, [draw.choice(TEMPERATURES) for _ in asked], until=until)
    held = [text for kind in sorted(by_kind) for text in by_kind[kind][:HELD_OUT_PER_KIND]]
    return [*material[apart:], *texts], held


def examine(student: Student, texts: Sequence[Text]) -> dict[str, float]:
    answers = agreement(student.model, texts)
    kinds = sorted({text.kind for text in texts})
    by_kind = {
        kind: accepted_length([a for a, t in zip(answers, texts, strict=True) if t.kind == kind], 4)
        for kind in kinds
    }
    agree = sum(map(sum, answers)) / sum(map(len, answers))
    return {
        "agreement": agree,
        "k4": sum(by_kind.values()) / len(by_kind),
        "k8": accepted_length(answers, 8),
        **by_kind,
    }


def write(options: argparse.Namespace, number: int) -> None:
    """One writing process: its own material, prompts and answers."""
    log = Log(options.out, f"writer {number}", options.started)
    seed = options.seed + 1000 * number
    torch.manual_seed(seed)
    target = _target(options)
    writer = Writer(target, Tokenizer.from_file(str(options.tokenizer)), options.cache_tokens, log)
    until = options.started + 60 * options.minutes * options.write_share
    held_out = 0 if number else min(options.prompts, 8 * HELD_OUT_PER_KIND * 3)
    texts, held = corpus(writer, until=until, size=options.prompts, held_out=held_out, seed=seed, log=log)
    save_texts(texts, options.out / f"texts-{number}.npz")
    if number == 0:
        save_texts(held, options.out / "held.npz")
    log(f"{len(texts)} texts of {sum(len(text.tokens) for text in texts)} tokens; {len(held)} held out")


def train(options: argparse.Namespace, number: int) -> None:
    """One learning process: one recipe, for all of the time or until it is the worst at a cut."""
    recipe = RECIPES[number]
    log = Log(options.out, recipe.name, options.started)
    target = _target(options)
    texts = [text for path in sorted(options.out.glob("texts-*.npz")) for text in load_texts(path)]
    held = load_texts(options.out / "held.npz")
    student = new_student(recipe, target, options.seed)
    size = sum(weights.numel() for weights in student.model.parameters())
    log(
        f"{size / 1e6:.2f} million parameters, {sum(len(text.tokens) for text in texts) / 1e6:.1f} million tokens"
    )
    feed = batches(
        texts,
        tokens_at_once=options.tokens_at_once,
        seed=options.seed,
        device=target.embedding.device,
        prompt_weight=0.1,
    )
    learn(student, target, next(feed), 0.0)  # compiles
    begun, until = time.time(), options.started + 60 * options.minutes - 15
    step, examined, cuts = 1, 0.0, list(CUTS)
    while (now := time.time()) < until:
        progress = (now - begun) / (until - begun)
        accepted, same = learn(student, target, next(feed), progress)
        step += 1
        if step % 200 == 0:
            log(
                f"{100 * progress:3.0f} %  step {step}  accepted {float(accepted):.3f}  agree {float(same):.3f}"
            )
        is_cut = bool(cuts) and progress > cuts[0]
        if progress - examined > 0.1 or is_cut:
            examined = progress
            _examined(student, held, progress, step, log)
        if is_cut and _is_worst(student, cuts.pop(0), options.out):
            log("ends here")
            break
    _examined(student, held, 1.0 if time.time() >= until else progress, step, log)
    (options.out / f"curve-{recipe.name}.json").write_text(json.dumps(student.curve), encoding="utf-8")
    weights = {name: values.half().cpu() for name, values in student.model.state_dict().items()}
    torch.save(weights, options.out / f"draft-{recipe.name}.pt")


def _examined(student: Student, held: Sequence[Text], progress: float, step: int, log: Log) -> None:
    found = examine(student, held)
    student.curve.append({"progress": progress, "step": step, **found})
    log(json.dumps({key: round(value, 3) for key, value in found.items()}))


def _is_worst(student: Student, cut: float, out: Path, patience_s: float = 20.0) -> bool:
    """Among those still learning. Who comes late is not waited for."""
    own = student.curve[-1]["k4"]
    (out / f"cut-{cut}-{student.recipe.name}").write_text(str(own), encoding="utf-8")
    ended = {path.stem.removeprefix("curve-") for path in out.glob("curve-*.json")}
    rivals = [recipe.name for recipe in RECIPES if recipe.name not in ended]
    late = time.time() + patience_s
    paths = [out / f"cut-{cut}-{name}" for name in rivals]
    while not all(path.exists() for path in paths) and time.time() < late:
        time.sleep(0.2)
    scores = [float(path.read_text(encoding="utf-8") or "inf") for path in paths if path.exists()]
    return len(scores) > 1 and own <= min(scores)


def _target(options: argparse.Namespace) -> Llama:
    return read_target(options.target).to(options.device, torch.bfloat16).requires_grad_(False)


def _at_once(
    work: Callable[[argparse.Namespace, int], None], options: argparse.Namespace, count: int
) -> None:
    """As many processes; the first that fails ends all."""
    context = mp.spawn(_start, args=(work, options), nprocs=count, join=False)
    while not context.join():
        pass


def _start(number: int, work: Callable[[argparse.Namespace, int], None], options: argparse.Namespace) -> None:
    work(options, number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=24.0)
    parser.add_argument("--write-share", type=float, default=0.35)
    parser.add_argument("--writers", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=24_000, help="at most, of each writer")
    parser.add_argument("--cache-tokens", type=int, default=500_000, help="of each writer; 23 kB each")
    parser.add_argument("--stages", default="write,learn", help="'learn' goes on with texts already written")
    parser.add_argument("--tokens-at-once", type=int, default=65_536)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    options.started = time.time()
    # Groups of texts differ in size, and what five processes keep for later does not fit one card.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    log = Log(options.out, "all", options.started)
    if "write" in options.stages:
        _at_once(write, options, options.writers)
    if "learn" not in options.stages:
        return
    _at_once(train, options, len(RECIPES))
    last = {
        recipe.name: json.loads((options.out / f"curve-{recipe.name}.json").read_text())[-1]
        for recipe in RECIPES
    }
    best = max(last, key=lambda name: float(last[name]["k4"]))
    (options.out / f"draft-{best}.pt").rename(options.out / "draft.pt")
    log(f"kept {best}: {last[best]}")


if __name__ == "__main__":
    main()
