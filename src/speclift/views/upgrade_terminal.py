"""What an upgrade of the engine changed, for a terminal."""

from __future__ import annotations

from rich.text import Text

from speclift.core.quantities import printable, ratio
from speclift.core.results import Estimate, Upgrade
from speclift.verdict.upgrade_answer import upgrade_sentence


def upgrade_view(upgrade: Upgrade) -> Text:
    """One fact a line; every change is after / before."""
    versions = f"{printable(upgrade.before_version)} -> {printable(upgrade.after_version)}"
    view = Text()
    view.append(f"\n{upgrade_sentence(upgrade)}\n", style="bold")
    view.append(f"  {printable(upgrade.arm)}, {versions}; each change is after / before\n")
    view.append(
        f"  TPOT speedup      {upgrade.before:.2f}x -> {upgrade.after:.2f}x, {ratio(upgrade.speedup)}\n"
    )
    view.append(f"  accepted length   {_change(upgrade.accepted_length)}\n")
    view.append(f"  cost of a step    {_change(upgrade.step_cost)}")
    return view


def _change(change: Estimate | None) -> str:
    if change is None:
        return "unknown"
    return f"{ratio(change)}, {'moved' if change.excludes(1.0) else 'not shown to have moved'}"
