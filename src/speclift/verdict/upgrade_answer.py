"""What an upgrade changed, in a sentence. Pure."""

from __future__ import annotations

from speclift.core.results import Moved, Upgrade

_WORDS = {Moved.ACCEPTANCE: "acceptance", Moved.STEP_COST: "the cost of a step"}


def upgrade_sentence(upgrade: Upgrade) -> str:
    """Which of the two moved; where neither did, or nobody can tell, that."""
    if upgrade.accepted_length is None or upgrade.step_cost is None:
        return "Whether acceptance or the cost of a step moved cannot be told: answers do not count their drafts."
    if not upgrade.moved:
        return "Neither acceptance nor the cost of a step is shown to have moved."
    estimates = {Moved.ACCEPTANCE: upgrade.accepted_length, Moved.STEP_COST: upgrade.step_cost}
    said = [f"{_WORDS[part]} {_direction(estimates[part].value)}" for part in upgrade.moved]
    still = [_WORDS[part] for part in Moved if part not in upgrade.moved]
    rest = f"; {still[0]} is not shown to have moved" if still else ""
    text = " and ".join(said) + rest
    return f"{text[0].upper()}{text[1:]}."


def _direction(change: float) -> str:
    return f"rose by {change - 1:.0%}" if change > 1 else f"fell by {1 - change:.0%}"
