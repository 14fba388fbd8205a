"""The rooms of ARCHITECTURE.md, held: who may import whom, and what the pure rooms may not touch."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from syntax import nodes_of, tree_of

pytestmark = pytest.mark.usefixtures("no_search_for_garbage")

PACKAGE = "speclift"
SOURCE = Path(__file__).parent.parent / "src" / PACKAGE
EXEMPT = (PACKAGE, f"{PACKAGE}.__main__")
# Each room and the rooms it may import; everybody may import core.
KNOWLEDGE = (
    "arithmetic",
    "workload",
    "statistics",
    "verdict",
    "search",
    "lossless",
    "planner",
    "linter",
    "replayer",
    "routing",
)
ROOMS: dict[str, tuple[str, ...]] = {
    "core": (),
    "http": (),
    "arithmetic": (),
    "workload": (),
    "lossless": (),
    "linter": (),
    "replayer": (),
    "routing": ("replayer", "statistics"),
    "statistics": ("arithmetic",),
    "planner": ("arithmetic",),
    "search": ("arithmetic",),
    "verdict": ("lossless", "search"),
    "views": ("verdict", "search", "lossless", "planner", "linter", "replayer", "routing"),
    "client": ("workload", "http"),
    "testing": ("client", "http"),
    "engines": ("arithmetic", "linter", "lossless", "replayer", "testing", "planner", "weights", "http"),
    "studies": ("workload", "statistics"),
    "weights": ("planner",),
    "live": ("statistics", "routing", "engines", "http"),
    "bench": (
        *("workload", "statistics", "search", "lossless", "planner", "replayer"),
        *("client", "engines", "http", "studies", "weights"),
    ),
    "fleet": ("bench", "client", "engines", "replayer", "search", "studies", "workload"),
    "verbs": (
        *("workload", "statistics", "verdict", "search", "lossless", "planner", "linter", "replayer"),
        *("routing", "client", "http", "engines", "studies", "weights", "live", "bench", "fleet", "views"),
    ),
    "cli": (
        *("verdict", "search", "lossless", "planner", "linter", "replayer"),
        *("studies", "weights", "live", "bench", "verbs", "views"),
    ),
}  # fmt: skip
PURE = {
    *("core", "arithmetic", "workload", "statistics", "verdict", "search", "lossless", "planner", "linter"),
    *("replayer", "routing", "views"),
}
# Bytes to values, whoever reads them from where.
SANS_IO = {f"{PACKAGE}.http.{name}" for name in ("answer", "counts", "message")}
# Whoever measures cannot know the verdict.
JUDGES, MEASURERS = {"statistics", "verdict"}, {"client", "engines"}
# I/O, clocks and concurrency.
IMPURE = {
    "aiohttp", "asyncio", "ctypes", "fcntl", "fileinput", "glob", "http", "httpx", "importlib.resources", "io",
    "mmap", "multiprocessing", "os", "requests", "resource", "select", "selectors", "shelve", "shutil", "signal",
    "socket", "sqlite3", "ssl", "subprocess", "sys", "tempfile", "threading", "time", "typer", "urllib.request",
}  # fmt: skip
IMPURE_CALLS = {"open", "input", "print", "breakpoint"}
PATH_NAMES = {"PurePath", "PurePosixPath", "PureWindowsPath"}
ENGINES = {"xllamacpp", "torch", "transformers", "vllm", "llama_cpp"}
# They read files of this package alone, which are as constant as code.
PACKAGE_DATA = {f"{PACKAGE}.core.engine_facts", f"{PACKAGE}.lossless.soak.reproduction"}
EMBEDDED_SERVER = f"{PACKAGE}.engines.llamacpp.server"


@cache
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


@cache
def imports_of(source: str) -> tuple[Import, ...]:
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
            elif not isinstance(child, ast.expr):
                yield from walk(child, function)

    return tuple(walk(tree_of(source), None))


def violations(module: str, source: str) -> list[str]:
    """What is wrong with one module, in words; empty where nothing is."""
    if module in EXEMPT:
        return []
    room = module.split(".")[1]
    if room not in ROOMS:
        return [f"{module}: {room} is no room"]
    wrong = [fault for found in imports_of(source) for fault in _import_faults(module, room, found)]
    calls = (node.func for node in nodes_of(source) if isinstance(node, ast.Call))
    for called in calls:
        if isinstance(called, ast.Name) and called.id in IMPURE_CALLS and room in PURE:
            wrong.append(f"pure room {room} calls {called.id}()")
        dynamic = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
        if dynamic in {"__import__", "import_module"}:
            wrong.append(f"{dynamic}() hides an import from this test")
    return [f"{module}: {fault}" for fault in wrong]


def _import_faults(module: str, room: str, found: Import) -> Iterator[str]:
    root = found.module.split(".")[0]
    if found.module.startswith("."):
        yield f"relative import {found.module}"
    elif root == PACKAGE:
        yield from _room_faults(room, found)
    elif root in ENGINES:
        embedded = (module, root, found.function) == (EMBEDDED_SERVER, "xllamacpp", "main")
        if not embedded:
            yield f"imports the engine {root}"
    elif room in PURE or module in SANS_IO:
        full = f"{found.module}.{found.name}" if found.name else found.module
        is_impure = full != "io.StringIO" and any(
            full == banned or full.startswith(f"{banned}.") for banned in IMPURE
        )
        is_disk = root == "pathlib" and found.name not in PATH_NAMES
        is_own_data = module in PACKAGE_DATA and full == "importlib.resources.files"
        if (is_impure and not is_own_data) or is_disk:
            yield f"pure {'room ' + room if room in PURE else module} imports {full}"


def _room_faults(room: str, found: Import) -> Iterator[str]:
    parts = found.module.split(".")
    if len(parts) == 1:
        if found.name == "__version__" and room != "core":
            return
        if found.name not in ROOMS:
            yield f"imports {found.name or PACKAGE} of the package's front door"
            return
    other = parts[1] if len(parts) > 1 else str(found.name)
    if other not in ROOMS:
        yield f"imports {other}, which is no room"
    elif other not in (room, "core", *ROOMS[room]):
        why = ": whoever measures cannot know the verdict" if room in MEASURERS and other in JUDGES else ""
        yield f"{room} may not import {other}{why}"


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

        assert {"speclift.core.records", "speclift.cli.main", "speclift.engines.llamacpp.server"} <= set(seen)
        assert any(
            found.module == "speclift.core.records" for found in imports_of(seen["speclift.studies.study"])
        )


BAD = [
    ("core.arm", "from speclift.arithmetic.acceptance import survival", "core may not import arithmetic"),
    ("core.arm", "import speclift.planner.methods", "core may not import planner"),
    ("core.arm", "from speclift import __version__", "front door"),
    ("statistics.stats", "from speclift.verdict import rules", "statistics may not import verdict"),
    ("studies.study", "from speclift.client.client import now_s", "studies may not import client"),
    ("bench.run", "from speclift.verbs import judge", "bench may not import verbs"),
    ("bench.run", "from speclift.verdict import rules", "bench may not import verdict"),
    ("planner.methods", "from speclift import studies", "planner may not import studies"),
    ("client.client", "from speclift.statistics.stats import crossed_fit", "cannot know the verdict"),
    ("engines.fake.engine", "def f():\n    from speclift.verdict.verdict import decide", "cannot know the verdict"),
    ("planner.methods", "if TYPE_CHECKING:\n    from speclift.cli.main import main", "planner may not import cli"),
    ("bench.run", "from speclift import Ask", "imports Ask of the package's front door"),
    ("bench.run", "import speclift", "front door"),
    ("bench.run", "from speclift.extras import thing", "no room"),
    ("extras.thing", "", "extras is no room"),
    ("cli.main", "from . import options", "relative import"),
    ("cli.main", "import torch.nn", "imports the engine torch"),
    ("weights.models", "from transformers import AutoModel", "imports the engine transformers"),
    ("engines.vllm.engine", "import vllm", "imports the engine vllm"),
    ("engines.llamacpp.engine", "def main():\n    import xllamacpp", "imports the engine xllamacpp"),
    ("engines.llamacpp.server", "import xllamacpp", "imports the engine xllamacpp"),
    ("engines.llamacpp.server", "def parser():\n    import xllamacpp", "imports the engine xllamacpp"),
    ("core.arm", "import subprocess", "pure room core imports subprocess"),
    ("arithmetic.acceptance", "import socket", "pure room arithmetic imports socket"),
    ("workload.arrivals", "from asyncio import sleep", "pure room workload imports asyncio.sleep"),
    ("statistics.stats", "from time import monotonic", "pure room statistics imports time.monotonic"),
    ("views.document", "import aiohttp.web", "pure room views imports aiohttp.web"),
    ("verdict.rules", "import sqlite3 as db", "pure room verdict imports sqlite3"),
    ("planner.tokens", "import urllib.request", "pure room planner imports urllib.request"),
    ("planner.tokens", "from urllib import request", "pure room planner imports urllib.request"),
    ("planner.methods", "import os.path", "pure room planner imports os.path"),
    ("planner.methods", "import pathlib", "pure room planner imports pathlib"),
    ("planner.methods", "from pathlib import Path", "pure room planner imports pathlib.Path"),
    ("planner.methods", "def f():\n    import time", "pure room planner imports time"),
    ("views.terminal", "print('done')", "pure room views calls print()"),
    ("workload.prompts", "lines = open('p.jsonl')", "pure room workload calls open()"),
    ("bench.run", "from speclift.fleet.run import FleetRun", "bench may not import fleet"),
    ("http.answer", "import asyncio", "pure speclift.http.answer imports asyncio"),
    ("search.search", "import importlib\nimportlib.import_module('os')", "hides an import"),
]  # fmt: skip

GOOD = [
    ("arithmetic.acceptance", "from speclift.core.records import Step\nfrom speclift import __version__"),
    ("planner.methods", "from pathlib import PurePath\nfrom urllib.parse import urlsplit"),
    (
        "studies.study",
        "import sqlite3, fcntl\nfrom pathlib import Path\nfrom speclift.workload import experiment",
    ),
    ("client.client", "import asyncio, time\nfrom speclift.workload.arrivals import arrival_offsets"),
    ("verbs.judge", "from speclift.statistics import cells\nfrom speclift.engines.protocol import Engine"),
    ("engines.llamacpp.server", "def main():\n    import xllamacpp"),
    ("cli.main", "from speclift.cli import options\nprint(open)"),
]


class TestTheRooms:
    def test_the_table_has_no_cycle(self) -> None:
        TopologicalSorter(ROOMS).prepare()

    def test_the_table_stands_in_the_architecture_as_well(self) -> None:
        page = (SOURCE.parents[1] / "ARCHITECTURE.md").read_text(encoding="utf-8")
        rows = re.findall(r"^\| `(\w+)/` \| ([^|]*) \|", page, flags=re.MULTILINE)
        drawn = {room: set(re.findall(r"\w+", allowed)) for room, allowed in rows}
        assert drawn == {room: set(allowed) for room, allowed in ROOMS.items()}

    def test_the_table_allows_nothing_that_nobody_needs(self) -> None:
        used: dict[str, set[str]] = {room: set() for room in ROOMS}
        for name, source in modules().items():
            for found in imports_of(source) if name not in EXEMPT else ():
                parts = [*found.module.split("."), found.name or ""]
                if parts[0] == PACKAGE and parts[1] in ROOMS:
                    used[name.split(".")[1]].add(parts[1])
        unused = {room: set(allowed) - used[room] for room, allowed in ROOMS.items()}
        assert not any(unused.values()), unused

    def test_on_the_way_of_decide_no_room_is_entered_twice(self) -> None:
        """As ARCHITECTURE.md draws it: when everything is measured, `judge` needs no bench any more."""
        rooms = {
            found.module.split(".")[1]
            for found in imports_of(modules()[f"{PACKAGE}.verbs.judge"])
            if found.module.startswith(f"{PACKAGE}.")
        }
        assert {"statistics", "verdict"} <= rooms
        assert rooms.isdisjoint({"bench", "client", "cli", "views"})

    @pytest.mark.slow
    def test_every_module_can_be_imported_in_every_form_of_the_statement(self) -> None:
        """A verb of the same name as a room once stood in its place."""
        lines = ["import speclift", "verbs = {name: getattr(speclift, name) for name in speclift.__all__}"]
        for name in modules():
            if name not in EXEMPT:
                room, _, leaf = name.rpartition(".")
                lines += [
                    f"import {name}",
                    f"import {name} as m",
                    f"from {room} import {leaf} as n",
                    "assert m is n",
                ]
        lines.append("assert all(getattr(speclift, name) is verb for name, verb in verbs.items())")
        subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)


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
            {
                "speclift.planner.a": "import speclift.planner.b",
                "speclift.planner.b": "import speclift.planner.a",
            },
            {
                "speclift.planner.a": "from speclift.planner import b",
                "speclift.planner.b": "def f():\n    from speclift.planner.a import g",
            },
        ],
    )
    def test_catches_a_cycle(self, sources: dict[str, str]) -> None:
        assert set(cycle(sources)) == {"speclift.planner.a", "speclift.planner.b"}
