"""The tool that asks whether a test would notice: what it changes, and that it changes copies alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mutate import ROOT, Mutant, Trees, drawn, mutants


def after(body: str) -> list[str]:
    source = f"def f(a: int | None = 1, b: int = 2):\n    return {body}\n"
    found = list(mutants(Path("f.py"), source))
    assert all(ast.unparse(ast.parse(mutant.source)) == mutant.source for mutant in found)
    return [mutant.source.rpartition("return ")[2] for mutant in found]


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        ("a < b", ["a >= b"]),
        ("a is not None", ["a is None"]),
        ("0 < a <= b", ["0 >= a <= b", "0 < a > b"]),
        ("a and b", ["a or b"]),
        ("not a", ["not not a"]),
        ("a * b", ["a / b"]),
        ("a - b + 1", ["a - b - 1", "a + b + 1"]),
        ("[x for x in a if x not in b]", ["[x for x in a if x in b]"]),
        ("a ** b", []),
        ("a", []),
    ],
)
def test_each_change_is_made_alone_and_taken_back(body: str, changed: list[str]) -> None:
    assert after(body) == changed


def test_a_function_inside_another_is_changed_once_and_under_its_own_name() -> None:
    source = "def f(a):\n    def g(b):\n        return b < 1\n    return g(a) + 1\n"
    assert [(each.function, each.before) for each in mutants(Path("f.py"), source)] == [
        ("f", "g(a) + 1"),
        ("g", "b < 1"),
    ]


def test_the_same_seed_draws_the_same_changes() -> None:
    first, again, other = (
        [str(mutant) for _, mutant in drawn(["verdict"], within="", count=5, seed=seed)] for seed in (1, 1, 2)
    )
    assert first == again != other
    assert len(first) == 5


def test_only_a_copy_is_changed_and_the_copy_is_put_right_again(tmp_path: Path) -> None:
    path = Path("src/speclift/core/units.py")
    before = (ROOT / path).read_text(encoding="utf-8")
    broken = Mutant(path=path, function="f", line=1, before="", after="", source="raise RuntimeError\n")
    test = "tests/arithmetic/test_response.py"
    trees = Trees(tmp_path, 1)
    assert trees.catches(broken, [test], timeout_s=60.0)
    assert (ROOT / path).read_text(encoding="utf-8") == before
    assert (tmp_path / "0" / path).read_text(encoding="utf-8") == before
    assert trees.seconds([test]) < 60.0
