"""Would the tests notice? Comparisons are flipped and operators swapped, one at a time, in the rooms that lead to a
verdict; each time the fast tests of that room that reach the change run. Prints what no test noticed, and the share
caught in each room.

    python benchmarks/mutate.py --count 200 --seed 1
    python benchmarks/mutate.py --count 200 --seed 1 --net
    python benchmarks/mutate.py --room lossless --within greedy.py:judge_greedy --count 0

A survivor is a question, not always a gap: some changes mean the same, such as `<` for `<=` where nothing is equal.
Those are kept in equivalent_mutants.toml, each with its reason, and are not drawn.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from mutated_tests import MutatedTests, change

ROOT = Path(__file__).parent.parent
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
COPIED = ("src", "tests", "benchmarks", "training", "docs", "pyproject.toml", "README.md")
ROOMS = ("arithmetic", "client", "lossless", "search", "statistics", "verdict")
SLOW = "llama or vllm or browser or gpu or alone or slow"
# Studies drawn by the hundred, and searches of whole engines: they hold the level of a verdict, and are too slow here.
SLOW_FILES = (
    "tests/search/test_tune_benchmark.py",
    "tests/statistics/test_known_truth.py",
    "tests/verdict/test_verdict_on_known_truth.py",
)
# Designs with a known truth, judged from records to verdict: cheap, and they reach most of these rooms.
DESIGNS = "tests/hostile/test_designs.py"
# What is left to hold behaviour where the tests of a module go: journeys, and answers that are known beforehand.
NET = (
    "tests/journeys",
    "tests/arithmetic",
    DESIGNS,
    "tests/hostile/test_impossible_counts.py",
    *(
        f"tests/lossless/test_{name}.py"
        for name in ("calibration", "degenerate_designs", "divergence", "greedy")
    ),
    "tests/lossless/test_recorded.py",
    *(f"tests/lossless/soak/test_soak_{name}.py" for name in ("acceptance", "faults", "rates", "sizes")),
    *(
        f"tests/search/test_tune_{name}.py"
        for name in ("conclusion", "cost", "posterior", "predictor", "race")
    ),
    *(f"tests/search/test_tune_{name}.py" for name in ("schedule", "search", "selection")),
    "tests/search/test_degenerate_searches.py",
    *(
        f"tests/statistics/test_{name}.py"
        for name in ("balance", "change", "compare", "crossed", "crossover")
    ),
    *(
        f"tests/statistics/test_{name}.py"
        for name in ("known_truth", "live_window", "load_curve", "nodes", "noise")
    ),
    *(f"tests/statistics/test_{name}.py" for name in ("pool_comparison", "stats", "tails", "upgrade")),
    *(f"tests/verdict/test_{name}.py" for name in ("conditions", "looks", "looks_on_known_truth", "verdict")),
    "tests/verdict/test_verdict_on_known_truth.py",
)
# Its functions run in processes of their own as well, where a change in memory does not come along.
ELSEWHERE = ("client",)
# A test on a copy may start servers and wait for them; one that hangs has failed.
COPY_TIMEOUT_S = 240.0

OPPOSITE: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    path: Path
    function: str
    line: int
    before: str
    after: str
    # The whole file, without comments: as it says now, and changed.
    now: str
    source: str

    @property
    def key(self) -> tuple[str, ...]:
        return self.path.as_posix(), self.function, self.before, self.after

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.function}: {self.before}  ->  {self.after}"


def mutants(path: Path, source: str) -> Iterator[Mutant]:
    """Every single change to the functions of one file."""
    statements = ast.parse(source).body
    # Of thousands of changes each is in one statement: the others are written once.
    written = [ast.unparse(statement) for statement in statements]
    for place, statement in enumerate(statements):
        for function in ast.walk(statement):
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for node in _own_nodes(function):
                    for before, after in _changes(node):
                        changed = [*written[:place], ast.unparse(statement), *written[place + 1 :]]
                        yield Mutant(
                            path=path,
                            function=function.name,
                            line=getattr(node, "lineno", function.lineno),
                            before=before,
                            after=after,
                            now="\n".join(written),
                            source="\n".join(changed),
                        )


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Without those of functions inside it, which speak for themselves, and without annotations."""
    for name, value in ast.iter_fields(function):
        if name in ("annotation", "returns"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST) and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node
                yield from _own_nodes(node)


def _changes(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The node before and after each change, made for as long as the caller looks and then taken back."""
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            before = ast.unparse(node)
            node.ops[place] = OPPOSITE[type(operator)]()  # type: ignore[call-overload]
            yield before, ast.unparse(node)
            node.ops[place] = operator
    elif isinstance(node, (ast.BoolOp, ast.BinOp)) and type(node.op) in OPPOSITE:
        before, kept = ast.unparse(node), node.op
        node.op = OPPOSITE[type(kept)]()  # type: ignore[assignment]
        yield before, ast.unparse(node)
        node.op = kept
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        before, operand = ast.unparse(node), node.operand
        node.operand = ast.UnaryOp(op=ast.Not(), operand=operand)
        yield before, ast.unparse(node)
        node.operand = operand


def drawn(rooms: Sequence[str], *, within: str, count: int, seed: int) -> list[tuple[str, Mutant]]:
    """`count` of the changes to the files and functions that `within` names, all of them where it is 0."""
    file_name, _, function = within.partition(":")
    same = equivalent()
    candidates = [
        (room, mutant)
        for room in rooms
        for path in sorted((ROOT / "src" / "speclift" / room).rglob("*.py"))
        if path.as_posix().endswith(file_name)
        for mutant in mutants(path.relative_to(ROOT), path.read_text(encoding="utf-8"))
        if function in ("", mutant.function) and mutant.key not in same
    ]
    return random.Random(seed).sample(candidates, min(count, len(candidates))) if count else candidates


def equivalent() -> dict[tuple[str, ...], str]:
    """Why each change that means the same does."""
    rows = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))["same"]
    return {(row["path"], row["function"], row["before"], row["after"]): row["reason"] for row in rows}


class Copy:
    """A copy of the tree, whose files are changed; never the tree itself."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, folder / name)

    def catches(self, mutant: Mutant, tests: Sequence[str]) -> bool:
        changed = self._folder / mutant.path
        original = changed.read_text(encoding="utf-8")
        changed.write_text(mutant.source, encoding="utf-8")
        try:
            return not self.passes(tests)
        finally:
            changed.write_text(original, encoding="utf-8")

    def passes(self, tests: Sequence[str]) -> bool:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            f"not ({SLOW})",
        ]
        environment = os.environ | {
            "PYTHONPATH": str(self._folder / "src"),
            "OPENBLAS_NUM_THREADS": "1",
            # What one change compiled must not be what the next one runs.
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        try:
            run = subprocess.run(
                [*command, *tests],
                cwd=self._folder,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=COPY_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        return run.returncode == 0


class Sample:
    """Changes, and what became of each; `net` are the tests that may notice, where those of the room are not to."""

    def __init__(
        self, chosen: list[tuple[str, Mutant]], copy: Copy, output: int, *, net: tuple[str, ...] = ()
    ) -> None:
        self._chosen = chosen
        self._copy = copy
        self._net = net
        self._output = output
        self._caught: Counter[str] = Counter()

    def judge(self, tests: MutatedTests) -> None:
        for left_out in tests.left_out:
            self._say(f"left out, slow or failing as it is: {left_out}")
        for room, mutant in self._chosen:
            folders = self._net or (f"tests/{room}/", DESIGNS)
            changed = change(ROOT / mutant.path, mutant.now, mutant.source)
            items = tests.reaching(changed, folders)
            is_caught = bool(items) and tests.catches(changed, items)
            if not is_caught and room in ELSEWHERE and not self._net:
                is_caught = self._copy.catches(mutant, [f"tests/{room}"])
            self._caught[room] += is_caught
            if not is_caught:
                self._say(f"{mutant}  (reached by {len(items)} tests)")
        drawn_of = Counter(room for room, _ in self._chosen)
        for room, count in sorted(drawn_of.items()):
            self._say(
                f"{room}: {self._caught[room]} of {count} changes caught ({self._caught[room] / count:.0%})"
            )
        self._say(
            f"all: {self._caught.total()} of {drawn_of.total()} ({self._caught.total() / drawn_of.total():.0%})"
        )

    def _say(self, line: str) -> None:
        os.write(self._output, f"{line}\n".encode())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--room", action="append", help="another than the rooms of a verdict")
    parser.add_argument("--within", default="", help="FILE, or FILE:FUNCTION")
    parser.add_argument("--count", type=int, default=60, help="changes to draw; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--net", action="store_true", help="journeys and known truths alone")
    parser.add_argument("--longest-s", type=float, default=5.0, help="tests that take longer are left out")
    asked = parser.parse_args()
    begun_s = time.monotonic()
    chosen = drawn(asked.room or ROOMS, within=asked.within, count=asked.count, seed=asked.seed)
    if not chosen:
        parser.error("nothing to change there")
    with tempfile.TemporaryDirectory() as folder:
        # Thousands of tests report below; what they print is nobody's.
        output = os.dup(1)
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        net = NET if asked.net else ()
        sample = Sample(chosen, Copy(Path(folder) / "copy"), output, net=net)
        tests = MutatedTests(sample.judge, longest_s=asked.longest_s)
        tests_of = net or (*sorted({f"tests/{room}" for room, _ in chosen}), DESIGNS)
        os.chdir(ROOT)
        slow = ["-m", f"not ({SLOW})"]
        if not net:
            slow += (f"--ignore={file}" for file in SLOW_FILES)
        code = pytest.main(["-q", "-p", "no:cacheprovider", *slow, *tests_of], plugins=[tests])
    os.write(output, f"{time.monotonic() - begun_s:.0f} s (pytest ended with {int(code)})\n".encode())


if __name__ == "__main__":
    main()
