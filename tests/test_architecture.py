"""The layers of ARCHITECTURE.md, held: who may import whom, and what the pure layers may not touch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = "speclift"
SOURCE = Path(__file__).parent.parent / "src" / PACKAGE
EXEMPT = (PACKAGE, f"{PACKAGE}.__main__")
# From the ground up; packages in one row are siblings.
ROWS = (
    ("core",),
    ("model",),
    ("workload", "plan", "simulate", "analyse", "decide", "tune", "report", "replay", "lint", "verify"),
    ("engine", "measure", "store"),
    ("pipeline", "watch"),
    ("cli",),
)
HEIGHT = {name: height for height, row in enumerate(ROWS) for name in row}
PURE = {name for row in ROWS[:3] for name in row}
# Whoever measures cannot know the verdict.
JUDGES, MEASURERS = {"analyse", "decide"}, {"measure", "engine"}
# I/O, clocks and concurrency.
IMPURE = {
    "aiohttp", "asyncio", "ctypes", "fcntl", "fileinput", "glob", "http", "httpx", "importlib.resources", "io",
    "mmap", "multiprocessing", "os", "requests", "resource", "select", "selectors", "shelve", "shutil", "signal",
    "socket", "sqlite3", "ssl", "subprocess", "sys", "tempfile", "threading", "time", "typer", "urllib.request",
}  # fmt: skip
IMPURE_CALLS = {"open", "input", "print", "breakpoint"}
PATH_NAMES = {"PurePath", "PurePosixPath", "PureWindowsPath"}
ENGINES = {"xllamacpp", "torch", "transformers", "vllm", "llama_cpp"}
EMBEDDED_SERVER = f"{PACKAGE}.engine.llamacpp_server"


def modules() -> dict[str, str]:
    """Every module of the package with its source text."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = (PACKAGE, *path.relative_to(SOURCE).with_suffix("").parts)
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path.read_text(encoding="utf-8")
    return found


class Import:
    """One imported name: `from a.b import c` is module a.b and name c; `import a.b` has no name."""

    def __init__(self, module: str, name: str | None, function: str | None) -> None:
        self.module = module
        self.name = name
        self.function = function  # the outermost function it stands in


def imports_of(source: str) -> Iterator[Import]:
    """All of them: inside functions and under TYPE_CHECKING too, for a type is knowledge."""

    def walk(node: ast.AST, function: str | None) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (Import(alias.name, None, function) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                module = "." * child.level + (child.module or "")
                yield from (Import(module, alias.name, function) for alias in child.names)
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield from walk(child, function or child.name)
            else:
                yield from walk(child, function)

    yield from walk(ast.parse(source), None)


def violations(module: str, source: str) -> list[str]:
    """What is wrong with one module, in words; empty where nothing is."""
    if module in EXEMPT:
        return []
    layer = module.split(".")[1]
    if layer not in HEIGHT:
        return [f"{module}: {layer} is no layer"]
    wrong = [fault for found in imports_of(source) for fault in _import_faults(module, layer, found)]
    calls = (node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    for called in calls:
        if isinstance(called, ast.Name) and called.id in IMPURE_CALLS and layer in PURE:
            wrong.append(f"pure layer {layer} calls {called.id}()")
        dynamic = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
        if dynamic in {"__import__", "import_module"}:
            wrong.append(f"{dynamic}() hides an import from this test")
    return [f"{module}: {fault}" for fault in wrong]


def _import_faults(module: str, layer: str, found: Import) -> Iterator[str]:
    root = found.module.split(".")[0]
    if found.module.startswith("."):
        yield f"relative import {found.module}"
    elif root == PACKAGE:
        yield from _layer_faults(layer, found)
    elif root in ENGINES:
        embedded = (module, root, found.function) == (EMBEDDED_SERVER, "xllamacpp", "main")
        if not embedded:
            yield f"imports the engine {root}"
    elif layer in PURE:
        full = f"{found.module}.{found.name}" if found.name else found.module
        is_impure = any(full == banned or full.startswith(f"{banned}.") for banned in IMPURE)
        is_disk = root == "pathlib" and found.name not in PATH_NAMES
        if is_impure or is_disk:
            yield f"pure layer {layer} imports {full}"


def _layer_faults(layer: str, found: Import) -> Iterator[str]:
    parts = found.module.split(".")
    if len(parts) == 1:
        if found.name == "__version__" and layer != "core":
            return
        if found.name not in HEIGHT:
            yield f"imports {found.name or PACKAGE} of the package's front door"
            return
    other = parts[1] if len(parts) > 1 else str(found.name)
    if other not in HEIGHT:
        yield f"imports {other}, which is no layer"
    elif other != layer and HEIGHT[other] == HEIGHT[layer]:
        yield f"{layer} imports its sibling {other}"
    elif HEIGHT[other] > HEIGHT[layer]:
        yield f"{layer} imports {other} above it"
    elif layer in MEASURERS and other in JUDGES:
        yield f"{layer} imports {other}: whoever measures cannot know the verdict"


def cycle(sources: dict[str, str]) -> list[str]:
    """A chain of modules that import each other, or nothing."""
    graph = {
        module: {
            full if (full := f"{found.module}.{found.name}") in sources else found.module
            for found in imports_of(source)
            if found.module.split(".")[0] == PACKAGE and found.module != PACKAGE
        }
        for module, source in sources.items()
        if module not in EXEMPT
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


class TestTheSource:
    def test_every_module_keeps_the_import_rule(self) -> None:
        assert [fault for name, source in modules().items() for fault in violations(name, source)] == []

    def test_there_is_no_import_cycle(self) -> None:
        assert cycle(modules()) == []

    def test_the_scan_sees_the_whole_package(self) -> None:
        seen = modules()

        assert {"speclift.core.records", "speclift.cli.main", "speclift.engine.llamacpp_server"} <= set(seen)
        assert any(
            found.module == "speclift.core.records" for found in imports_of(seen["speclift.store.study"])
        )


BAD = [
    ("core.arm", "from speclift.model.response import DraftCounts", "core imports model above it"),
    ("core.arm", "import speclift.plan.methods", "core imports plan above it"),
    ("core.arm", "from speclift import __version__", "front door"),
    ("analyse.stats", "from speclift.decide import rules", "analyse imports its sibling decide"),
    ("store.study", "from speclift.measure.clock import now_s", "store imports its sibling measure"),
    ("watch.scrape", "from speclift.pipeline import judge", "watch imports its sibling pipeline"),
    ("plan.methods", "from speclift import store", "plan imports store above it"),
    ("measure.load", "from speclift.analyse.stats import crossed_fit", "cannot know the verdict"),
    ("engine.fake", "def f():\n    from speclift.decide.verdict import decide", "cannot know the verdict"),
    ("plan.methods", "if TYPE_CHECKING:\n    from speclift.cli.main import main", "plan imports cli above it"),
    ("pipeline.run", "from speclift import Ask", "imports Ask of the package's front door"),
    ("pipeline.run", "import speclift", "front door"),
    ("pipeline.run", "from speclift.extras import thing", "no layer"),
    ("extras.thing", "", "extras is no layer"),
    ("cli.main", "from . import options", "relative import"),
    ("cli.main", "import torch.nn", "imports the engine torch"),
    ("store.models", "from transformers import AutoModel", "imports the engine transformers"),
    ("engine.vllm", "import vllm", "imports the engine vllm"),
    ("engine.llamacpp", "def main():\n    import xllamacpp", "imports the engine xllamacpp"),
    ("engine.llamacpp_server", "import xllamacpp", "imports the engine xllamacpp"),
    ("engine.llamacpp_server", "def parser():\n    import xllamacpp", "imports the engine xllamacpp"),
    ("core.arm", "import subprocess", "pure layer core imports subprocess"),
    ("model.response", "import socket", "pure layer model imports socket"),
    ("workload.arrivals", "from asyncio import sleep", "pure layer workload imports asyncio.sleep"),
    ("analyse.stats", "from time import monotonic", "pure layer analyse imports time.monotonic"),
    ("report.document", "import aiohttp.web", "pure layer report imports aiohttp.web"),
    ("decide.rules", "import sqlite3 as db", "pure layer decide imports sqlite3"),
    ("plan.pairing", "import urllib.request", "pure layer plan imports urllib.request"),
    ("plan.pairing", "from urllib import request", "pure layer plan imports urllib.request"),
    ("plan.methods", "import os.path", "pure layer plan imports os.path"),
    ("plan.methods", "import pathlib", "pure layer plan imports pathlib"),
    ("plan.methods", "from pathlib import Path", "pure layer plan imports pathlib.Path"),
    ("plan.methods", "def f():\n    import time", "pure layer plan imports time"),
    ("report.terminal", "print('done')", "pure layer report calls print()"),
    ("workload.prompts", "lines = open('p.jsonl')", "pure layer workload calls open()"),
    ("tune.search", "import importlib\nimportlib.import_module('os')", "hides an import"),
]  # fmt: skip

GOOD = [
    ("model.response", "from speclift.core.records import Step\nfrom speclift import __version__"),
    ("plan.methods", "from pathlib import PurePath\nfrom urllib.parse import urlsplit"),
    ("store.study", "import sqlite3, fcntl\nfrom pathlib import Path\nfrom speclift.plan import experiment"),
    ("measure.load", "import asyncio, time\nfrom speclift.workload.arrivals import arrival_offsets"),
    ("pipeline.judge", "from speclift.analyse import cells\nfrom speclift.engine.protocol import Engine"),
    ("engine.llamacpp_server", "def main():\n    import xllamacpp"),
    ("cli.main", "from speclift.cli import options\nprint(open)"),
]


class TestTheRuleItself:
    @pytest.mark.parametrize(("module", "source", "fault"), BAD)
    def test_catches(self, module: str, source: str, fault: str) -> None:
        found = violations(f"{PACKAGE}.{module}", source)

        assert len(found) == 1
        assert fault in found[0]

    @pytest.mark.parametrize(("module", "source"), GOOD)
    def test_allows(self, module: str, source: str) -> None:
        assert violations(f"{PACKAGE}.{module}", source) == []

    @pytest.mark.parametrize(
        "sources",
        [
            {"speclift.plan.a": "import speclift.plan.b", "speclift.plan.b": "import speclift.plan.a"},
            {
                "speclift.plan.a": "from speclift.plan import b",
                "speclift.plan.b": "def f():\n    from speclift.plan.a import g",
            },
        ],
    )
    def test_catches_a_cycle(self, sources: dict[str, str]) -> None:
        assert set(cycle(sources)) == {"speclift.plan.a", "speclift.plan.b"}
