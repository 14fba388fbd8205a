"""vLLM started from Python: the keywords of LLM(...) and its kin, off the syntax tree. Nothing is run. Pure."""

from __future__ import annotations

import ast

from speclift.core.errors import UsageError
from speclift.lint.pasted import Expression, Form, Pasted, Setting

ENGINES = ("LLM", "EngineArgs", "AsyncEngineArgs", "AsyncLLMEngine", "LLMEngine", "AsyncLLM")
SAMPLING = "SamplingParams"


def looks_like_python(text: str) -> bool:
    return any(f"{name}(" in text for name in ENGINES)


def read_python(text: str) -> Pasted:
    # Notebooks hold lines for the shell.
    lines = ["" if line.lstrip().startswith(("!", "%")) else line for line in text.splitlines()]
    try:
        tree = ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError) as error:
        place = f" in line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise UsageError(f"this Python cannot be parsed{place}: {error.args[0]}") from None
    known = _constants(tree)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    engines = [call for call in calls if _name(call) in ENGINES and (call.keywords or call.args)]
    if not engines:
        raise UsageError(
            "no vLLM engine is made in this Python", hint=f"one of {', '.join(ENGINES)} with its keywords"
        )
    call = min(engines, key=lambda node: (node.lineno, node.col_offset))
    settings = [setting for keyword in call.keywords for setting in _settings(keyword, known)]
    model = _value(call.args[0], known) if call.args else None
    sampling = [
        setting
        for node in calls
        if _name(node) == SAMPLING
        for keyword in node.keywords
        for setting in _settings(keyword, known)
    ]
    more = len(engines) - 1
    return Pasted(
        engine="vllm",
        form=Form.PYTHON,
        settings=tuple(settings),
        model=None if model is None else str(model),
        program=(str(_name(call)),),
        sampling=tuple(sampling),
        notes=(f"{more} more engines are made in it; only the first is judged",) if more else (),
    )


def _name(call: ast.Call) -> str | None:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else None


def _settings(keyword: ast.keyword, known: dict[str, object]) -> list[Setting]:
    value = _value(keyword.value, known)
    if keyword.arg is not None:
        return [_setting(keyword.arg, value)]
    if isinstance(value, dict):  # **settings
        return [_setting(str(name), each) for name, each in value.items()]
    return []


def _setting(name: str, value: object) -> Setting:
    return Setting(name=f"--{name.replace('_', '-')}", spelled=name, value=value)


def _constants(tree: ast.Module) -> dict[str, object]:
    """Names that are assigned a literal anywhere, the first one winning."""
    known: dict[str, object] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            value = _value(node.value, known)
            if not isinstance(value, Expression):
                known.setdefault(node.targets[0].id, value)
    return known


def _value(node: ast.expr, known: dict[str, object]) -> object:
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id]
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return {str(_value(key, known)): _value(value, known) for key, value in pairs if key is not None}
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(each, known) for each in node.elts]
    if isinstance(node, ast.Call) and _name(node) == "dict" and not node.args:
        return {str(keyword.arg): _value(keyword.value, known) for keyword in node.keywords if keyword.arg}
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return Expression(ast.unparse(node))
