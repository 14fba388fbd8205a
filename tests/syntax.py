"""Sources as syntax trees, each parsed and walked once for all that is looked for in it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache


@cache
def tree_of(source: str) -> ast.Module:
    return ast.parse(source)


@cache
def nodes_of(source: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree_of(source)))


def statements_of(node: ast.AST) -> Iterator[ast.AST]:
    """Those below it, with handlers and cases; most of a tree is expressions, which hold no statement."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child
            yield from statements_of(child)
