"""Text that is no plain command: pasted from a browser, a unit file, Python code. Pure."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterator, Sequence

from speclift.core.errors import UsageError
from speclift.linter.dialect import Dialect
from speclift.linter.pasted import Expression, Form, Pasted, Setting, expressions_in

# Prompts, curly quotes, joined lines. Each repair is told in a note: what is judged is no longer quite what was pasted


_FENCE = re.compile(r"\A\s*(?:```|~~~)[^\n]*\n(.*?)(?:\n\s*(?:```|~~~)[^\n]*)?\s*\Z", re.DOTALL)
_PYTHON_PROMPT = re.compile(r"^[ \t]*(?:>>>|\.\.\.)(?:[ \t]|$)", re.MULTILINE)
# (venv) me@host:~/models$ vllm serve …; a bare $ is the shell reader's to take off.
_PROMPT = re.compile(
    r"^[ \t]*(?:\([\w.-]+\)[ \t]+)?(?:[\w.-]+@[\w.-]+[: ]\S*[$#%]|PS [A-Z]:\S*>|[❯➜%])[ \t]+(?=\S)",
    re.MULTILINE,
)
_ENVIRONMENT_PROMPT = re.compile(r"^[ \t]*\([\w.-]+\)[ \t]+(?=\$[ \t])", re.MULTILINE)
_SECOND_PROMPT = re.compile(r"(\\[ \t]*\n)[ \t]*>[ \t]+")
_NOTEBOOK = re.compile(r"^[ \t]*(?:%%(?:bash|sh)\b[^\n]*|!(?=[\w./]))", re.MULTILINE)
# A line's end that became a blank; Windows' own ^ only before a flag, since a ^ means little elsewhere.
_JOINED = re.compile(r"(?<=\s)(?:\\[ \t]+(?=\S)|\\[ \t]*\Z|\^[ \t]+(?=-))")
_BLANKS = re.compile("[\u00a0\u2000-\u200a\u202f\u205f\u3000]")
_CURLY_DOUBLE = re.compile("[“”„‟]")
_CURLY_SINGLE = re.compile("[‘’‚‛]")


def made_plain(text: str) -> tuple[str, tuple[str, ...]]:
    """The text a shell or an interpreter was given, and what had to be repaired to get there."""
    notes: list[str] = []
    for repair, note in _REPAIRS:
        repaired = repair(text)
        if repaired != text:
            notes.append(note)
            text = repaired
    return text, tuple(notes)


def words_made_plain(words: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """The same for what a shell has split already: it makes one word of `\\ --flag`, blank and all."""
    plain = [word.lstrip() if word.lstrip().startswith("-") else word for word in words]
    plain = [word for word in plain if not word or word.strip()]
    return plain, () if plain == list(words) else (_JOINED_NOTE,)


def _unfenced(text: str) -> str:
    match = _FENCE.match(text)
    return text if match is None else match[1]


def _without_prompts(text: str) -> str:
    if re.search(r"^[ \t]*>>>[ \t]", text, re.MULTILINE):
        return _PYTHON_PROMPT.sub("", text)
    text = _ENVIRONMENT_PROMPT.sub("", _SECOND_PROMPT.sub(r"\1", text))
    return _NOTEBOOK.sub("", _PROMPT.sub("", text))


def _straight(text: str) -> str:
    """Who has both kinds means the curly ones as characters; an odd single one is an apostrophe."""
    if '"' not in text:
        text = _CURLY_DOUBLE.sub('"', text)
    is_paired = len(_CURLY_SINGLE.findall(text)) % 2 == 0
    return _CURLY_SINGLE.sub("'", text) if is_paired and "'" not in text else text


_JOINED_NOTE = "a \\ before a blank was read as the end of a line, as it was before the paste"
_REPAIRS: tuple[tuple[Callable[[str], str], str], ...] = (
    (_unfenced, "the fence around the code is left out"),
    (_without_prompts, "prompts at the beginning of lines are left out"),
    (_straight, "curly quotes were read as straight ones"),
    (lambda text: _BLANKS.sub(" ", text), "blanks that a shell does not take for blanks were read as blanks"),
    (lambda text: _JOINED.sub("", text), _JOINED_NOTE),
)


# Units of systemd


_LINE_END = re.compile(r"\\[ \t]*\r?\n[ \t]*")
_EXEC = re.compile(r"^[ \t]*ExecStart[ \t]*=[ \t]*[-@:+!|]*(.+)$", re.MULTILINE)
_ENVIRONMENT = re.compile(r"^[ \t]*Environment[ \t]*=[ \t]*(.+)$", re.MULTILINE)
_FILE = re.compile(r"^[ \t]*EnvironmentFile[ \t]*=", re.MULTILINE)


def is_unit(text: str) -> bool:
    return _EXEC.search(text) is not None and re.search(r"^\s*\[Service\]", text, re.MULTILINE) is not None


def unit_commands(text: str) -> tuple[str, tuple[str, ...]]:
    """The same as a shell script, and what was left of the unit."""
    joined = _LINE_END.sub(" ", text)
    exports = (f"export {match[1]}" for match in _ENVIRONMENT.finditer(joined))
    starts = (match[1] for match in _EXEC.finditer(joined))
    notes = ["this is the command of the unit's ExecStart; its other lines stay as they are"]
    if _FILE.search(joined):
        notes.append("EnvironmentFile is not read: variables in it are not known here")
    return "\n".join([*exports, *starts]), tuple(notes)


# Python that makes an engine


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
    """Names what is spread with ** into the call, or into a dict that is given to it, and cannot be told."""
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
