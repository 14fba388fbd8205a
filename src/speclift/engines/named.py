"""Which engines are there? Our own are the folders beside this file; a package of somebody else's adds one by naming
its kind in the entry-point group `speclift.engines`."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec

import speclift.engines
from speclift.core.errors import OperatingError
from speclift.linter.dialect import Dialect

GROUP = "speclift.engines"
# What a module may raise as it is loaded: not there, not Python, made for another speclift, or wrong in its tables.
LOADING_FAULTS = (
    *(ImportError, SyntaxError, NameError, AttributeError, TypeError),
    *(ValueError, LookupError, ArithmeticError, OSError, RuntimeError),
)


def engine_names() -> tuple[str, ...]:
    return tuple(points())


@cache
def points() -> dict[str, EntryPoint]:
    """The places of all kinds by name, whether or not this package was installed."""
    ours = [
        EntryPoint(name=name, value=f"{speclift.engines.__name__}.{name}.kind:KIND", group=GROUP)
        for name in _folders()
    ]
    others = [point for point in entry_points(group=GROUP) if point.name not in _folders()]
    return {point.name: point for point in (*ours, *others)}


@cache
def known_dialects() -> tuple[Dialect, ...]:
    """The command lines that lint can judge; ours are read without the engines behind them."""
    dialects = [_our_dialect(name) if name in _folders() else _their_dialect(name) for name in engine_names()]
    return tuple(dialect for dialect in dialects if dialect is not None)


def loaded(point: EntryPoint) -> object:
    """What stands at this place; OperatingError where that cannot be loaded."""
    try:
        return point.load()
    except LOADING_FAULTS as error:
        raise not_usable(point, str(error)) from error


def not_usable(point: EntryPoint, why: str) -> OperatingError:
    return OperatingError(
        f"the engine {point.name} ({point.value}) cannot be used: {why}",
        hint="update the package that it comes from, or remove it",
    )


@cache
def _folders() -> tuple[str, ...]:
    return tuple(module.name for module in pkgutil.iter_modules(speclift.engines.__path__) if module.ispkg)


def _our_dialect(name: str) -> Dialect | None:
    home = f"{speclift.engines.__name__}.{name}.dialect"
    if find_spec(home) is None:
        return None
    dialect = EntryPoint(name=name, value=f"{home}.command_line:DIALECT", group=GROUP).load()
    assert isinstance(dialect, Dialect)
    return dialect


def _their_dialect(name: str) -> Dialect | None:
    try:
        dialect = getattr(loaded(points()[name]), "dialect", None)
    except OperatingError:
        return None  # told where the engine is asked for; to all else it is not there
    return dialect if isinstance(dialect, Dialect) else None
