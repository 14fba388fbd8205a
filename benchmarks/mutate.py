"""Would the tests notice? Comparisons are flipped and operators swapped, one at a time, in the rooms that lead to a
verdict; each time that room's fast tests run on a copy of the tree. Prints what no test noticed, and the share caught.

    python benchmarks/mutate.py --count 40 --seed 1
    python benchmarks/mutate.py --room lossless --within greedy.py:judge_greedy --count 0

A survivor is a question, not always a gap: some changes mean the same, such as `<` for `<=` where nothing is equal.
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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parent.parent
COPIED = ("src", "tests", "benchmarks", "training", "docs", "pyproject.toml", "README.md")
ROOMS = ("arithmetic", "lossless", "search", "statistics", "verdict")
SLOW = "llama or vllm or browser or gpu or alone"
# A change may make a loop endless: it is caught when the tests take this many times as long as they should.
PATIENCE = 4.0
TIMEOUT_MIN_S = 60.0

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
    source: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.function}: {self.before}  ->  {self.after}"


def mutants(path: Path, source: str) -> Iterator[Mutant]:
    """Every single change to the functions of one file."""
    tree = ast.parse(source)
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for node in _own_nodes(function):
                for before, after in _changes(node):
                    yield Mutant(
                        path=path,
                        function=function.name,
                        line=getattr(node, "lineno", function.lineno),
                        before=before,
                        after=after,
                        source=ast.unparse(tree),
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


class Trees:
    """Copies of the tree to change and test, never the tree itself; one for each test run at a time."""

    def __init__(self, folder: Path, count: int) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        for number in range(count):
            copy = folder / str(number)
            copy.mkdir()
            for name in COPIED:
                if (ROOT / name).is_dir():
                    shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(ROOT / name, copy / name)
            self._free.put(copy)

    def catches(self, mutant: Mutant, tests: Sequence[str], *, timeout_s: float) -> bool:
        tree = self._free.get()
        changed = tree / mutant.path
        original = changed.read_text(encoding="utf-8")
        try:
            changed.write_text(mutant.source, encoding="utf-8")
            return not self.passes(tree, tests, timeout_s=timeout_s)
        finally:
            changed.write_text(original, encoding="utf-8")
            self._free.put(tree)

    def seconds(self, tests: Sequence[str]) -> float:
        """That the tests take with nothing changed; they have to pass."""
        tree = self._free.get()
        begun_s = time.monotonic()
        is_passed = self.passes(tree, tests, timeout_s=None)
        self._free.put(tree)
        if not is_passed:
            sys.exit(f"the tests fail with nothing changed: {' '.join(tests)}")
        return time.monotonic() - begun_s

    @staticmethod
    def passes(tree: Path, tests: Sequence[str], *, timeout_s: float | None) -> bool:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        environment = os.environ | {
            "PYTHONPATH": str(tree / "src"),
            "OPENBLAS_NUM_THREADS": "1",
            # What one change compiled must not be what the next one runs.
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        try:
            run = subprocess.run(
                [*command, "-m", f"not ({SLOW})", *tests],
                cwd=tree,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        return run.returncode == 0


def room_tests(room: str, *, first: str = "") -> list[str]:
    """The room's test files, those that name the module `first`: most changes are caught there."""
    files = sorted((ROOT / "tests" / room).glob("test_*.py"))
    ordered = sorted(files, key=lambda file: first not in file.read_text(encoding="utf-8"))
    return [file.relative_to(ROOT).as_posix() for file in ordered]


def drawn(rooms: Sequence[str], *, within: str, count: int, seed: int) -> list[tuple[str, Mutant]]:
    """`count` of the changes to the files and functions that `within` names, all of them where it is 0."""
    file_name, _, function = within.partition(":")
    found = [
        (room, mutant)
        for room in rooms
        for path in sorted((ROOT / "src" / "speclift" / room).rglob("*.py"))
        if path.as_posix().endswith(file_name)
        for mutant in mutants(path.relative_to(ROOT), path.read_text(encoding="utf-8"))
        if function in ("", mutant.function)
    ]
    return random.Random(seed).sample(found, min(count, len(found))) if count else found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--room", action="append", help="another than the rooms of a verdict")
    parser.add_argument("--within", default="", help="FILE, or FILE:FUNCTION")
    parser.add_argument("--tests", nargs="+", metavar="FILE", help="instead of all of the room's tests")
    parser.add_argument("--count", type=int, default=40, help="changes to draw; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    chosen = drawn(asked.room or ROOMS, within=asked.within, count=asked.count, seed=asked.seed)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(asked.jobs) as pool:
        trees = Trees(Path(folder), asked.jobs)
        usual_s = {
            room: trees.seconds(asked.tests or room_tests(room)) for room in {room for room, _ in chosen}
        }

        def catches(drawn_one: tuple[str, Mutant]) -> bool:
            room, mutant = drawn_one
            timeout_s = max(TIMEOUT_MIN_S, PATIENCE * usual_s[room])
            return trees.catches(
                mutant, asked.tests or room_tests(room, first=mutant.path.stem), timeout_s=timeout_s
            )

        caught = 0
        for (_, mutant), is_caught in zip(chosen, pool.map(catches, chosen), strict=True):
            caught += is_caught
            if not is_caught:
                print(mutant, flush=True)
    print(f"{caught} of {len(chosen)} changes caught ({caught / max(1, len(chosen)):.0%})")


if __name__ == "__main__":
    main()
