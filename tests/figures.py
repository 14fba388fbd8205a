"""How large the product is, against its budgets: `python tests/figures.py` prints both, `--lower` takes what is saved.

The budgets are the table of docs/adr/0010-budgets.md, so raising one is a line there.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from radon.complexity import cc_visit_ast

from syntax import nodes_of, tree_of

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src"
BUDGETS = ROOT / "docs" / "adr" / "0010-budgets.md"
ROW = re.compile(r"^\| (?P<name>[^|]+?) \| (?P<budget>[\d.]+) \|", re.M)

FUNCTION_LINES_MAX = 80
COMPLEXITY_MAX = 15
SMALL_FUNCTION_LINES = 3
SMALL_FILE_LINES = 60
# Local names that say nothing of what they hold.
EMPTY_NAMES = frozenset({"found", "each", "said", "own", "kept", "asked", "known", "told"})
# A docstring that begins so is no sentence.
FRAGMENT = re.compile(
    r"(Of|What|With|Where|Which|By|From|In|On|At|As|To|For|Whether|Beside|Beyond|Under|Over|Until|Since|Only)\b"
)
LAYOUT = frozenset(
    {
        *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
        *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
    }
)
# What each of these loads of ours, by a run of the verb.
VERBS = {
    "decide, fake": "decide --engine fake --engine-arg ttft_s=0.001 --engine-arg tpot_s=0.0001 --requests 1 "
    "--max-tokens 2 --launches 1 --segment chat --k 2 --verify off",
    "watch -": "watch -",
    "lint a vLLM line": "lint -- vllm serve m --speculative-model d",
    "--help": "--help",
}

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Walk:
    """What one walk over the sources counts."""

    counts: Counter[str] = field(default_factory=Counter)
    # How often a name is read or called; names of functions, and of values, that are small.
    uses: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    functions: Counter[str] = field(default_factory=Counter)
    small: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    offenders: dict[str, list[str]] = field(default_factory=dict)

    def note(self, figure: str, where: str) -> None:
        self.counts[figure] += 1
        self.offenders.setdefault(figure, []).append(where)


def counted(sources: dict[str, str]) -> Walk:
    """Figures of the sources, which are given by file."""
    walk = Walk()
    for file, text in sources.items():
        walk.counts["files"] += 1
        if len(text.splitlines()) < SMALL_FILE_LINES and not file.endswith(("__init__.py", "__main__.py")):
            walk.note(f"files under {SMALL_FILE_LINES} lines", file)
        walk.counts["lines of code"] += len(code_lines(text))
        for node in nodes_of(text):
            _count_node(node, file, walk)
        for block in cc_visit_ast(tree_of(text)):
            if block.letter in ("F", "M") and block.complexity > COMPLEXITY_MAX:
                walk.note(f"functions of complexity over {COMPLEXITY_MAX}", f"{file}:{block.fullname}")
    _count_uses(walk)
    return walk


def code_lines(text: str) -> set[int]:
    """Numbers of the lines that hold code: neither comments nor docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in nodes_of(text):
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)) and ast.get_docstring(node) is not None:
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def lines_of(function: Function) -> int:
    """Lines of a function without its docstring."""
    first, lines = function.body[0], (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def _count_node(node: ast.AST, file: str, walk: Walk) -> None:
    if isinstance(node, FUNCTIONS):
        _count_function(node, file, walk)
    elif isinstance(node, ast.ClassDef):
        walk.counts["classes"] += 1
        bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        if "TypedDict" in bases:
            walk.note("TypedDicts", f"{file}:{node.name}")
        if "Struct" in bases or any("dataclass" in ast.unparse(line) for line in node.decorator_list):
            walk.values.append(node.name)
    elif isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Store) and node.id in EMPTY_NAMES:
            walk.note("stores to empty names", f"{file}:{node.lineno} {node.id}")
        elif isinstance(node.ctx, ast.Load):
            walk.uses[node.id] += 1
            walk.counts["Any"] += node.id == "Any"
    elif isinstance(node, ast.Attribute):
        walk.uses[node.attr] += 1
    elif isinstance(node, ast.Call):
        walk.calls[ast.unparse(node.func).rpartition(".")[2]] += 1
    if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)):
        docstring = ast.get_docstring(node)
        if docstring is not None and FRAGMENT.match(docstring):
            walk.note("docstrings that are fragments", f"{file}:{getattr(node, 'lineno', 1)}")


def _count_function(function: Function, file: str, walk: Walk) -> None:
    walk.counts["functions"] += 1
    walk.functions[function.name] += 1
    has_docstring = ast.get_docstring(function) is not None
    body = function.body[has_docstring:]
    lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
    if lines <= SMALL_FUNCTION_LINES and not function.decorator_list and not function.name.startswith("__"):
        walk.small.append(f"{file}:{function.name}")
    if lines_of(function) > FUNCTION_LINES_MAX:
        walk.note(f"functions over {FUNCTION_LINES_MAX} lines", f"{file}:{function.name}")


def _count_uses(walk: Walk) -> None:
    """Counts what only one place uses, where the name tells: of functions one call, of values one that makes it and
    one more that names it."""
    for place in walk.small:
        name = place.rpartition(":")[2]
        if walk.functions[name] == 1 and walk.uses[name] == 1:
            walk.note(f"functions of at most {SMALL_FUNCTION_LINES} lines with one caller", place)
    for name in walk.values:
        if walk.calls[name] == 1 and walk.uses[name] <= 2:
            walk.note("values made in one place and read in one place", name)


def modules_loaded(words: str) -> int:
    """How many modules of ours a verb loads."""
    command = [sys.executable, "-X", "importtime", "-m", "speclift", *words.split()]
    page = (ROOT / "tests" / "recorded" / "vllm-0.32.0-metrics.txt").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(command, cwd=folder, input=page, capture_output=True, text=True, check=False)
    return len(set(re.findall(r"\| +(speclift[\w.]*)$", run.stderr, re.M)))


def product() -> dict[str, str]:
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in SRC.rglob("*.py")}


def budgets() -> dict[str, int]:
    """Figures by name, as the page has them."""
    rows = ROW.finditer(BUDGETS.read_text(encoding="utf-8"))
    return {row["name"]: int(row["budget"]) for row in rows}


def loaded() -> Iterator[tuple[str, int]]:
    for verb, words in VERBS.items():
        yield f"modules of {verb}", modules_loaded(words)


def lowered(page: str, now: dict[str, int]) -> str:
    """The page with every budget that is above its figure taken down to it."""
    for name, figure in now.items():
        row = re.search(rf"^\| {re.escape(name)} \| (\d+) \|", page, re.M)
        if row is not None and figure < int(row[1]):
            page = page.replace(row[0], f"| {name} | {figure} |")
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lower", action="store_true", help="write today's figures where they are lower")
    parser.add_argument(
        "--where", action="store_true", help="also where the small and the forbidden things are"
    )
    options = parser.parse_args()
    walk = counted(product())
    now = dict.fromkeys(budgets(), 0) | walk.counts | dict(loaded())
    print(f"{'':52}{'now':>8}{'budget':>8}")
    for name, budget in budgets().items():
        print(f"{name:52}{now[name]:8,}{budget:8,}{'  over' if now[name] > budget else ''}")
        if options.where:
            print(*(f"    {place}" for place in walk.offenders.get(name, ())), sep="\n")
    if options.lower:
        BUDGETS.write_text(lowered(BUDGETS.read_text(encoding="utf-8"), now), encoding="utf-8")


if __name__ == "__main__":
    main()
