"""The budgets of the house style, held: sizes, names, words, broad excepts, paths of one machine."""

from __future__ import annotations

import ast
import importlib
import re
import statistics
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest
from radon.complexity import cc_visit_ast

import speclift
from syntax import nodes_of, statements_of, tree_of

pytestmark = pytest.mark.usefixtures("no_search_for_garbage")

ROOT = Path(__file__).parent.parent
CODE = sorted(
    path for folder in ("src", "tests", "benchmarks", "docs") for path in (ROOT / folder).rglob("*.py")
)
PRODUCT = [path for path in CODE if path.is_relative_to(ROOT / "src")]
OTHERS = [path for path in CODE if path != Path(__file__)]  # this one has to name what it looks for
PROSE = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
DATA = sorted(
    [
        *(ROOT / "src").rglob("*.jsonl"),
        *(p for p in (ROOT / "tests" / "recorded").rglob("*.*") if p.suffix != ".gz"),
    ]
)

FUNCTION_LINES_MAX = 60
MEDIAN_LINES_MAX = 10
COMPLEXITY_MAX = 15
PARAMETERS_MAX = 8
# Names in the syntax tree: where a library gives no type, and where JSON is read.
ANY_MAX = 60
# Each ends what it started and raises again, or hands what was raised to another thread or to the exit code.
BROAD_EXCEPTS = {
    "src/speclift/cli/main.py": 1,
    "src/speclift/engines/aside.py": 1,
    "src/speclift/engines/fake/engine.py": 1,
    "src/speclift/engines/llamacpp/engine.py": 1,
}

ENGINES = {path.parent.name for path in (ROOT / "src" / "speclift" / "engines").glob("*/kind.py")}
BANNED_MODULES = {"utils", "util", "common", "helpers", "helper", "misc"}
PLUMBING = re.compile(r"^Base[A-Z]|(Manager|Helper|Util|Utils|Mixin|Impl|Base)$")
MARKERS = re.compile(r"\b(TODO|FIXME|XXX)\b")
BANNED_WORDS = re.compile(r"\b(comprehensive|robust|seamless|simply|leverag|powerful)\w*", re.I)
MACHINE_PATHS = re.compile(r"/(root|work|home)/")
# Module files and dotted names that documentation mentions.
NAMED_FILES = re.compile(r"[\w./-]*\w\.py\b")
NAMED_OBJECTS = re.compile(r"\bspeclift(?!\.toml)(?:\.[A-Za-z_]\w*)+")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def offenders(paths: Iterable[Path], faults: Callable[[str], object]) -> dict[str, object]:
    """Files in which something was found, with what was found."""
    found = {name_of(path): faults(text_of(path)) for path in paths}
    return {name: fault for name, fault in found.items() if fault}


Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def functions_in(source: str) -> Iterator[Function]:
    for node in statements_of(tree_of(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def lines_of(function: Function) -> int:
    """The docstring is not counted."""
    first, lines = function.body[0], (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def long_functions(source: str) -> list[str]:
    return [function.name for function in functions_in(source) if lines_of(function) > FUNCTION_LINES_MAX]


def complex_functions(source: str) -> list[str]:
    """By radon's count of ways through: branches, loops, conditions and comprehensions."""
    return [
        block.fullname
        for block in cc_visit_ast(tree_of(source))
        if block.letter in ("F", "M") and block.complexity > COMPLEXITY_MAX
    ]


def wide_functions(source: str) -> list[str]:
    return [function.name for function in functions_in(source) if parameter_count(function) > PARAMETERS_MAX]


def parameter_count(function: Function) -> int:
    """Without the object or class that a method is called on."""
    arguments = function.args
    by_position = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    return len(by_position) + len(arguments.kwonlyargs) - (by_position[:1] in (["self"], ["cls"]))


def named(paths: Iterable[Path], functions: Callable[[str], list[str]]) -> set[str]:
    return {f"{name_of(path)}:{function}" for path in paths for function in functions(text_of(path))}


def broad_excepts(source: str) -> int:
    """Handlers (and suppress calls) that would swallow any error."""
    caught: list[ast.expr | None] = []
    for node in nodes_of(source):
        if isinstance(node, ast.ExceptHandler):
            caught.append(node.type)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
            caught.extend(node.args)
    return sum(
        expression is None
        or any(
            ast.unparse(each).rpartition(".")[2] in {"Exception", "BaseException"}
            for each in (expression.elts if isinstance(expression, ast.Tuple) else [expression])
        )
        for expression in caught
    )


def engine_comparisons(source: str) -> Iterator[int]:
    """Lines that compare something with the name of an engine."""
    for node in nodes_of(source):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            values = [each for side in sides for each in getattr(side, "elts", [side])]
        elif isinstance(node, ast.MatchValue):
            values = [node.value]
        else:
            continue
        if any(isinstance(value, ast.Constant) and value.value in ENGINES for value in values):
            yield node.lineno


def plumbing_classes(source: str) -> list[str]:
    classes = [node.name for node in nodes_of(source) if isinstance(node, ast.ClassDef)]
    return [name for name in classes if PLUMBING.search(name)]


def lines_matching(pattern: re.Pattern[str], text: str) -> list[str]:
    return [
        f"{number}: {line.strip()}"
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def unresolved(text: str) -> list[str]:
    """Module files and dotted names in documentation that do not exist."""
    folders = (ROOT, ROOT / "src", ROOT / "src" / "speclift", ROOT / "tests")
    files = [
        name
        for name in dict.fromkeys(NAMED_FILES.findall(text))
        if not any((folder / name).is_file() for folder in folders) and not _is_basename(name)
    ]
    return files + [name for name in dict.fromkeys(NAMED_OBJECTS.findall(text)) if not _resolves(name)]


def _is_basename(name: str) -> bool:
    return "/" not in name and any(path.name == name for path in CODE)


def _resolves(name: str) -> bool:
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[cut:]:
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False


class TestSizes:
    def test_no_function_is_too_long(self) -> None:
        assert named(CODE, long_functions) == set()

    def test_most_functions_are_short(self) -> None:
        lengths = [lines_of(function) for path in PRODUCT for function in functions_in(text_of(path))]

        assert statistics.median(lengths) < MEDIAN_LINES_MAX

    def test_no_function_has_too_many_ways_through(self) -> None:
        assert named(PRODUCT, complex_functions) == set()

    def test_no_function_takes_too_many_parameters(self) -> None:
        assert named(PRODUCT, wide_functions) == set()

    def test_types_do_not_end_on_the_way(self) -> None:
        untyped = {
            name_of(path): sum(
                isinstance(node, ast.Name) and node.id == "Any" for node in nodes_of(text_of(path))
            )
            for path in PRODUCT
        }

        assert sum(untyped.values()) <= ANY_MAX, {name: count for name, count in untyped.items() if count}

    def test_the_measure_of_a_function_leaves_out_its_docstring(self) -> None:
        body = "    x = 1\n" * FUNCTION_LINES_MAX
        documented = 'def f():\n    """One.\n\n    Two.\n    """\n' + "    x = 1\n" * (FUNCTION_LINES_MAX - 1)

        assert long_functions(f"def f():\n{body}") == ["f"]
        assert long_functions(documented) == []

    @pytest.mark.parametrize(("conditions", "found"), [(COMPLEXITY_MAX - 1, []), (COMPLEXITY_MAX, ["C.f"])])
    def test_ways_through_are_counted(self, conditions: int, found: list[str]) -> None:
        body = "        if x: pass\n" * conditions

        assert complex_functions(f"class C:\n    def f(self, x):\n{body}") == found

    @pytest.mark.parametrize(
        ("source", "found"),
        [
            ("def f(a, b, /, c, d, *, e, f, g, h): ...", []),
            ("def f(a, b, /, c, d, e, *, f, g, h, i): ...", ["f"]),
            ("async def f(a, b, c, d, e, f, g, h, i=0): ...", ["f"]),
            ("class C:\n    def f(self, a, b, c, d, *, e, f, g, h): ...", []),
        ],
    )
    def test_parameters_are_counted_without_the_object_called(self, source: str, found: list[str]) -> None:
        assert wide_functions(source) == found


class TestEngines:
    def test_its_name_is_compared_in_its_folder_alone(self) -> None:
        """What an engine is like it says of itself: engines/kind.py, linter/dialects.py, planner/request.py."""
        own = {"engines", "testing"}
        others = [path for path in PRODUCT if own.isdisjoint(path.relative_to(ROOT / "src").parts)]
        assert offenders(others, lambda source: list(engine_comparisons(source))) == {}

    @pytest.mark.parametrize(
        "source",
        [
            "if engine == 'vllm': pass",
            "a = 'llamacpp' != kind",
            "a = engine in ('vllm', 'fake')",
            "match engine:\n    case 'attach': pass",
            "match engine:\n    case 'attach' | 'other': pass",
        ],
    )
    def test_a_comparison_is_seen(self, source: str) -> None:
        assert len(list(engine_comparisons(source))) == 1

    def test_a_name_that_is_only_said_is_none(self) -> None:
        assert list(engine_comparisons("names = {'vllm': 'vLLM'}\nprint('vllm')")) == []


class TestNames:
    def test_no_module_has_a_name_that_says_nothing(self) -> None:
        stems = {part for path in CODE for part in (path.stem, path.parent.name)}

        assert stems & BANNED_MODULES == set()

    def test_a_public_class_name_has_one_meaning(self) -> None:
        homes: dict[str, list[str]] = {}
        for path in PRODUCT:
            for node in nodes_of(text_of(path)):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes.setdefault(node.name, []).append(name_of(path))

        assert {name: files for name, files in homes.items() if len(files) > 1} == {}

    def test_no_class_is_named_after_plumbing(self) -> None:
        assert offenders(PRODUCT, plumbing_classes) == {}

    @pytest.mark.parametrize("name", ["BaseEngine", "StudyManager", "RetryMixin", "ClientBase"])
    def test_plumbing_is_recognised(self, name: str) -> None:
        assert plumbing_classes(f"class Baseline: ...\nclass {name}: ...") == [name]

    def test_every_module_says_which_question_it_answers(self) -> None:
        silent = [name_of(path) for path in PRODUCT if ast.get_docstring(tree_of(text_of(path))) is None]

        assert silent == []


class TestWords:
    def test_nothing_is_left_for_later(self) -> None:
        assert offenders([*OTHERS, *PROSE], lambda text: lines_matching(MARKERS, text)) == {}

    def test_no_empty_words(self) -> None:
        assert offenders([*PRODUCT, *PROSE], lambda text: lines_matching(BANNED_WORDS, text)) == {}

    def test_no_path_of_one_machine(self) -> None:
        assert offenders([*OTHERS, *PROSE, *DATA], lambda text: lines_matching(MACHINE_PATHS, text)) == {}

    @pytest.mark.parametrize(
        ("pattern", "line"),
        [
            (MARKERS, "x = 1  # TODO later"),
            (MARKERS, "# FIXME: wrong"),
            (BANNED_WORDS, "a Robust and fast tool"),
            (BANNED_WORDS, "leveraging the cache"),
            # Put together here, so that this file has none itself.
            *((MACHINE_PATHS, f"open('/{folder}/notes')") for folder in ("root", "work", "home")),
        ],
    )
    def test_a_slip_is_seen(self, pattern: re.Pattern[str], line: str) -> None:
        assert lines_matching(pattern, f"fine\n{line}\n") == [f"2: {line}"]


class TestExcepts:
    def test_broad_ones_only_where_allowed(self) -> None:
        assert offenders(PRODUCT, broad_excepts) == BROAD_EXCEPTS

    @pytest.mark.parametrize(
        "source",
        [
            "try:\n    f()\nexcept:\n    pass",
            "try:\n    f()\nexcept Exception:\n    pass",
            "try:\n    f()\nexcept (OSError, BaseException) as error:\n    raise",
            "try:\n    f()\nexcept builtins.Exception:\n    pass",
            "with contextlib.suppress(OSError, Exception):\n    f()",
        ],
    )
    def test_a_broad_one_is_seen(self, source: str) -> None:
        assert broad_excepts(source) == 1

    def test_a_narrow_one_is_not(self) -> None:
        assert broad_excepts("try:\n    f()\nexcept (OSError, ValueError):\n    pass") == 0


class TestPublicNames:
    def test_they_are_sorted_and_unique(self) -> None:
        assert list(speclift.__all__) == sorted(set(speclift.__all__))

    @pytest.mark.parametrize("name", speclift.__all__)
    def test_every_one_resolves(self, name: str) -> None:
        assert getattr(speclift, name) is not None

    def test_others_are_refused_by_name(self) -> None:
        with pytest.raises(AttributeError, match="no attribute 'absent'"):
            _ = speclift.absent


class TestDocumentation:
    def test_every_module_it_names_exists(self) -> None:
        assert offenders(PROSE, unresolved) == {}

    def test_a_name_that_does_not_exist_is_seen(self) -> None:
        text = "See `studies/study.py`, `speclift.core.arm.Arm`, study.py; not `store/gone.py`, speclift.core.arm.Gone."

        assert unresolved(text) == ["store/gone.py", "speclift.core.arm.Gone"]
