"""Metric names that dashboards still ask for: found in any text, and judged like flags. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from speclift.linter.findings import LintFinding, Release
from speclift.linter.pasted import Setting
from speclift.linter.row_rules import judge_flag
from speclift.linter.rows import NameTable


@dataclass(frozen=True, slots=True)
class MetricNames:
    """Rows without the engine's `prefix`, with which most dashboards write them."""

    table: NameTable
    prefix: str

    def found_in(self, text: str) -> tuple[str, ...]:
        name = rf"(?<!\w)(?:{self.prefix}[:_])?({'|'.join(self.table.rows)})(?!\w)"
        return tuple(dict.fromkeys(match[1] for match in re.finditer(name, text)))

    def judged(self, names: tuple[str, ...], *, release: Release) -> tuple[LintFinding, ...]:
        return tuple(
            judge_flag(Setting(name=name, spelled=name), self.table[name], self.table, release)
            for name in names
        )
