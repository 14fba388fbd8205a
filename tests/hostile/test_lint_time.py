"""lint takes time in proportion to its input, whatever stands in it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from running import Cli

pytestmark = pytest.mark.slow

SIZES = (5_000, 100_000)
RULES = "groups:\n- name: a\n  rules:\n"
HARD: dict[str, Callable[[int], str]] = {
    "blanks": lambda size: f"vllm serve{' ' * size}m",
    "blanks alone": lambda size: f"x{' ' * size}y",
    "lines of blanks": lambda size: "vllm serve m\n" + " \n" * (size // 2),
    "list markers": lambda size: "- " * (size // 2),
    "list markers in lines": lambda size: "a:\n" + "- \n" * (size // 15),
    "dashes": lambda size: "-" * size,
    "a flag of dashes": lambda size: f"vllm serve m {'-' * size}",
    "colons": lambda size: ":" * size,
    "a key and colons": lambda size: f"a{':' * size}",
    "a key of blanks": lambda size: f"a{' ' * size}b",
    "lines of keys": lambda size: "".join(f"k{number}: 1\n" for number in range(size // 10)),
    "items in braces": lambda size: f"a: [{'1,' * (size // 2)}]",
    "open braces": lambda size: "a: " + "{" * size,
    "complex keys": lambda size: "? " * (size // 2) + ":",
    "a quoted text over lines": lambda size: 'a: "' + "x\n " * (size // 3) + '"',
    "a folded text": lambda size: "a: >\n" + "  x\n" * (size // 4),
    "a plain text over lines": lambda size: "a: x\n" + " y\n" * (size // 3),
    "a number of sixtieths": lambda size: f"a: 1{':59' * (size // 3)}",
    "anchors": lambda size: "".join(f"k{number}: &a{number} 1\n" for number in range(size // 20)),
    "aliases": lambda size: "a: &a [1, 2]\nb: [" + "*a," * (size // 3) + "]",
    "merges": lambda size: "a: &a {b: 1}\nc: {<<: [" + "*a," * (size // 3) + "]}",
    "documents": lambda size: "a: 1\n" + "---\n" * (size // 4),
    "tags": lambda size: "a: " + "!x " * (size // 3),
    "words": lambda size: f"vllm serve m {'w ' * (size // 2)}",
    "flags": lambda size: f"vllm serve m {'--a ' * (size // 4)}",
    "other flags": lambda size: "vllm serve m " + " ".join(f"--zz{number}" for number in range(size // 10)),
    "open quotes in lines": lambda size: "'a\n" * (size // 3),
    "continuations": lambda size: "vllm serve m " + "\\\n" * (size // 2),
    "open brackets": lambda size: f"vllm serve {'$(' * (size // 2)}",
    "closed brackets": lambda size: f"vllm serve {'$(' * (size // 4)}{')' * (size // 4)} --bogus",
    "variables": lambda size: "vllm serve m " + "".join(f"$v{number} " for number in range(size // 10)),
    "dollars": lambda size: f"vllm serve {'$' * size}",
    "backslashes": lambda size: "vllm serve m " + "\\" * size,
    "a long value": lambda size: f"vllm serve m --port {'9' * size}",
    "a long model": lambda size: f"vllm serve {'m' * size}",
    "carets": lambda size: "vllm serve m " + "^" * size,
    "slashes": lambda size: "docker run " + "/vllm" * (size // 5),
    "semicolons": lambda size: "vllm serve m " + ";" * size,
    "here-documents": lambda size: "cat " + "<<E " * (size // 5) + "\nvllm serve m\nE\n",
    "keys of a config": lambda size: "vllm serve m --speculative-config '"
    + json.dumps({f"zz{number}": 1 for number in range(size // 15)})
    + "'",
    "rules": lambda size: RULES + "".join(f"  - expr: vllm:zz{number} > 1\n" for number in range(size // 30)),
    "recording rules": lambda size: RULES
    + "".join(f"  - {{record: 'vllm:z{number}', expr: vllm:num_requests_running}}\n" for number in range(size // 60)),
    "names in a query": lambda size: "".join(f"vllm:zz{number} + " for number in range(size // 15))
    + "(vllm:prompt_tokens)",
    "brackets in a query": lambda size: f"{RULES}  - expr: '{'(' * size} vllm:num_requests_running'\n",
    "escaped quotes in a query": lambda size: RULES
    + "  - expr: 'vllm:num_requests_running{a=\""
    + '\\\\"' * (size // 2),
    "quotes in a query": lambda size: f"{RULES}  - expr: vllm:num_requests_running{'`' * size}\n",
    "alternatives": lambda size: f"curl h/metrics | grep -E 'vllm:{'(a|b)' * (size // 5)}'",
    "greps": lambda size: "curl h/metrics\n" + "".join(f"grep vllm:z{number}\n" for number in range(size // 15)),
    "a dashboard": lambda size: json.dumps(
        {"panels": [{"title": "t", "targets": [{"expr": f"rate(vllm:a{number}[5m])"}]} for number in range(size // 60)]}
    ),
    "a deep dashboard": lambda size: '{"expr":"vllm:x","panels":[' * (size // 30),
    "blanks in a carried file": lambda size: json.dumps({"data": {"a": "{" + "\n" * size}, "expr": "vllm:a"}),
    "engines in Python": lambda size: "LLM(" * (size // 4),
    "Python": lambda size: "LLM(model='m')\n" + "x = 1\n" * (size // 30),
    "hashes": lambda size: "#" * size,
    "comments": lambda size: "vllm serve m " + "#\n" * (size // 2),
}  # fmt: skip


class TestTime:
    @pytest.mark.timeout(90)
    @pytest.mark.parametrize("long", SIZES)
    @pytest.mark.parametrize("kind", HARD)
    def test_grows_with_the_length(self, kind: str, long: int, cli: Cli, tmp_path: Path) -> None:
        """Ten times the text may take thirty times the time, and 100 kB a few seconds on a busy machine."""
        took = {}
        for size in (long // 10, long):
            (tmp_path / "input").write_text(HARD[kind](size), encoding="utf-8")
            begun_s = time.thread_time()
            result = cli("lint", "input")
            took[size] = time.thread_time() - begun_s
            assert result.code in (0, 2, 4), result.stderr[-300:]
            assert max(map(len, result.stderr.splitlines()), default=0) < 3000
        assert took[long] < max(1.0, 6e-6 * long, 30 * took[long // 10])
        assert took[long] < 15.0
