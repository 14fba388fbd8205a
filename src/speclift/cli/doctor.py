"""doctor: what this machine has, before a study is started on it."""

from __future__ import annotations

import json
import sys
from typing import Any

from speclift.cli.options import Json
from speclift.report.quantities import printable


def doctor_command(as_json: Json = False) -> None:
    """Engines, versions, GPUs, threads, models and how late this machine's timers are.

    Example: speclift doctor
    """
    from rich.console import Console
    from rich.table import Table

    from speclift.pipeline.doctor import diagnose

    facts = diagnose()
    if as_json:
        sys.stdout.write(json.dumps({"schema": 1, **facts}, indent=2) + "\n")
        return
    table = Table(show_header=False)
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), printable(_text(value), limit=300))
    Console().print(table)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key} {_text(entry)}" for key, entry in value.items())
    if isinstance(value, list):
        return ", ".join(_text(entry) for entry in value) or "none"
    return str(value)
