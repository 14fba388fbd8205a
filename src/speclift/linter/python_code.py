"""An engine started from Python: the keywords of the call that makes it, off the syntax tree. Nothing is run. Pure."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator

from speclift.core.errors import UsageError
from speclift.linter.dialect import Dialect
from speclift.linter.pasted import Expression, Form, Pasted, Setting
from speclift.linter.placeholders import expressions_in

UNTOLD = "its value is known only when the program runs"
DEEPEST = 50  # levels of a literal; a config has three


def looks_like_python(text: str, dialect: Dialect) -> bool:
    return any(f"{name}(" in text for name in dialect.python_makers)


def read_python(text: str, dialect: Dialect) -> list[Pasted]:
    """Every engine that is made in it, in its order."""
    tree = _tree(text)
    known = _constants(tree)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    made = [call for call in calls if _name(call) in dialect.python_makers and (call.keywords or call.args)]
    if not made:
        raise UsageError(
            f"no {dialect.title} engine is created in this Python code",
            hint=f"expected a call of {', '.join(dialect.python_makers)} with keywords",
        )
    sampling = tuple(
        each for node in calls if _name(node) == dialect.python_sampling for each in _settings(node, known)
    )
    made.sort(key=lambda node: (node.lineno, node.col_offset))
    return [_engine(call, known, dialect, sampling) for call in made]


def _engine(
    call: ast.Call, known: dict[str, object], dialect: Dialect, sampling: tuple[Setting, ...]
) -> Pasted:
    model = _value(call.args[0], known) if call.args else None
    settings = tuple(_settings(call, known))
    untold = [
        *expressions_in("model", model),
        *(found for setting in settings for found in expressions_in(setting.spelled, setting.value)),
    ]
    return Pasted(
        engine=dialect.engine,
        form=Form.PYTHON,
        settings=settings,
        model=None if model is None else str(model),
        program=(str(_name(call)),),
        sampling=sampling,
        stray=tuple(_source(each) for each in call.args[1:]),
        unread=tuple((f"**{_source(each)}", UNTOLD) for each in _spreads(call, known)),
        missing=tuple((name, f"is {value.text}: {UNTOLD}") for name, value in untold),
    )


def _tree(text: str) -> ast.Module:
    # Notebooks hold lines for the shell.
    lines = ["" if line.lstrip().startswith(("!", "%")) else line for line in text.splitlines()]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in somebody else's strings
            return ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        place = f" in line {error.lineno}" if isinstance(error, SyntaxError) else ""
        why = error.args[0] if error.args else "it is nested too deeply"
        raise UsageError(f"this Python cannot be parsed{place}: {why}") from None


def _name(call: ast.Call) -> str | None:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else None


def _settings(call: ast.Call, known: dict[str, object]) -> Iterator[Setting]:
    """Its keywords, and those of a dict that is spread into it."""
    for keyword in call.keywords:
        value = _value(keyword.value, known)
        if keyword.arg is not None:
            yield _setting(keyword.arg, value)
        elif isinstance(value, dict):
            yield from (_setting(str(name), each) for name, each in value.items())


def _spreads(call: ast.Call, known: dict[str, object]) -> Iterator[ast.expr]:
    """What is spread with ** into the call, or into a dict that is given to it, and cannot be told."""
    for keyword in call.keywords:
        if keyword.arg is None and not isinstance(_value(keyword.value, known), dict):
            yield keyword.value
        for node in ast.walk(keyword.value):
            if isinstance(node, ast.Dict):
                yield from (value for key, value in zip(node.keys, node.values, strict=True) if key is None)
            elif isinstance(node, ast.Call) and _name(node) == "dict":
                yield from (each.value for each in node.keywords if each.arg is None)


def _setting(name: str, value: object) -> Setting:
    return Setting(name=f"--{name.replace('_', '-')}", spelled=name, value=value)


def _constants(tree: ast.Module) -> dict[str, object]:
    """Names that are assigned one literal; what two lines, a call or a loop set otherwise is not."""
    known: dict[str, object] = {}
    taken: set[str] = set(_rebound(tree))
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if len(targets) == 1 and isinstance(targets[0], ast.Name):
            name, value = targets[0].id, _value(node.value, known)
            is_other = name in taken and known.get(name) != value
            if is_other or isinstance(value, Expression):
                known.pop(name, None)
            elif name not in taken:
                known[name] = value
            taken.add(name)
    return known


def _rebound(tree: ast.Module) -> Iterator[str]:
    """Names that get their values elsewhere: parameters, loops, with, :=, +=, several at once."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg
            continue
        targets: list[ast.expr | None] = []
        if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension, ast.AugAssign, ast.NamedExpr)):
            targets = [node.target]
        elif isinstance(node, ast.withitem):
            targets = [node.optional_vars]
        elif isinstance(node, ast.Assign):
            targets = [each for each in node.targets if len(node.targets) > 1 or isinstance(each, ast.Tuple)]
        for target in targets:
            names = () if target is None else ast.walk(target)
            yield from (name.id for name in names if isinstance(name, ast.Name))


def _value(node: ast.expr, known: dict[str, object], *, depth: int = 0) -> object:
    if depth > DEEPEST:
        return Expression(_source(node))
    deeper = depth + 1
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id]
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {
            str(_value(key, known, depth=deeper)): _value(value, known, depth=deeper)
            for key, value in pairs
            if key is not None
        }
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(each, known, depth=deeper) for each in node.elts]
    if isinstance(node, ast.Call) and _name(node) == "dict" and not node.args:
        return {
            str(keyword.arg): _value(keyword.value, known, depth=deeper)
            for keyword in node.keywords
            if keyword.arg
        }
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return Expression(_source(node))


def _source(node: ast.expr) -> str:
    try:
        return ast.unparse(node)
    except RecursionError:
        return "…"
