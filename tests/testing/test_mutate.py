"""The tool that asks whether a test would notice: what it changes, and that it changes copies alone."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mutate import ROOMS, ROOT, drawn, equivalent, mutants

pytestmark = pytest.mark.slow


def after(body: str) -> list[str]:
    source = f"def f(a: int | None = 1, b: int = 2):\n    return {body}\n"
    found = list(mutants(Path("f.py"), source))
    assert all(ast.unparse(ast.parse(mutant.source)) == mutant.source for mutant in found)
    return [mutant.source.rpartition("return ")[2] for mutant in found]


@pytest.mark.slow
def test_a_change_that_means_the_same_is_not_drawn_and_still_exists() -> None:
    existing = {
        mutant.key
        for path in {key[0] for key in equivalent()}
        for mutant in mutants(Path(path), (ROOT / path).read_text(encoding="utf-8"))
    }
    assert equivalent().keys() <= existing
    assert not equivalent().keys() & {mutant.key for _, mutant in drawn(ROOMS, within="", count=0, seed=0)}


@pytest.mark.slow
def test_a_change_in_memory_fails_the_test_that_reaches_it_and_no_file_differs(tmp_path: Path) -> None:
    """Of two functions with a test each, `<` becomes `>=` in the first alone."""
    source = "def low(a):\n    return any(b < 1 for b in a)\n\n\ndef high(a):\n    return a > 1\n"
    (tmp_path / "judged.py").write_text(source, encoding="utf-8")
    (tmp_path / "test_judged.py").write_text(
        "from judged import high, low\n\n\n"
        "def test_low():\n    assert low([0])\n\n\ndef test_high():\n    assert high(2)\n",
        encoding="utf-8",
    )
    script = tmp_path / "ask.py"
    script.write_text(
        "import pytest\n"
        "from pathlib import Path\n"
        "from mutate import mutants\n"
        "from mutated_tests import MutatedTests, change\n"
        "path = Path('judged.py').resolve()\n"
        "def judge(tests):\n"
        "    for mutant in mutants(path, path.read_text()):\n"
        "        changed = change(path, mutant.now, mutant.source)\n"
        "        items = tests.reaching(changed, ('test_judged.py',))\n"
        "        said.append((mutant.after, [item.name for item in items], tests.catches(changed, items)))\n"
        "said = []\n"
        "tests = MutatedTests(judge, longest_s=60.0)\n"
        "pytest.main(['-q', '-p', 'no:cacheprovider', 'test_judged.py'], plugins=[tests])\n"
        "print(said)\n",
        encoding="utf-8",
    )
    asked = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "benchmarks")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert asked.stdout.splitlines()[-1] == str(
        [("b >= 1", ["test_low"], True), ("a <= 1", ["test_high"], True)]
    )
    assert (tmp_path / "judged.py").read_text(encoding="utf-8") == source
