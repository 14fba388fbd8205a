"""What an upgrade of the engine changed, for a terminal."""

from __future__ import annotations

from rich.text import Text

from speclift.core.quantities import printable, ratio
from speclift.core.results import Bounds, Moved, Upgrade


def upgrade_view(upgrade: Upgrade) -> Text:
    """One fact a line; every change is after / before."""
    versions = f"{printable(upgrade.before.engine_version)} -> {printable(upgrade.after.engine_version)}"
    view = Text()
    view.append(f"\n{upgrade.sentence}\n", style="bold")
    view.append(f"  {printable(upgrade.arm)}, {versions}; each change is after / before\n")
    view.append(
        f"  TPOT speedup      {upgrade.before.speedup:.2f}x -> {upgrade.after.speedup:.2f}x, {ratio(upgrade.speedup)}\n"
    )
    view.append(f"  accepted length   {_change(upgrade, Moved.ACCEPTANCE, upgrade.accepted_length)}\n")
    view.append(f"  cost of a step    {_change(upgrade, Moved.STEP_COST, upgrade.step_cost)}")
    return view


def _change(upgrade: Upgrade, part: Moved, change: Bounds | None) -> str:
    if change is None:
        return "unknown"
    return f"{ratio(change)}, {'moved' if part in upgrade.moved else 'not shown to have moved'}"
