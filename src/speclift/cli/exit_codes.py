"""What a verdict is to a shell."""

from __future__ import annotations

from speclift.core.results import Decision

EXIT_CODES = {
    Decision.SHIP: 0,
    Decision.SHIP_ON_CONDITIONS: 3,
    Decision.DO_NOT_SHIP: 4,
    Decision.INCONCLUSIVE: 5,
    Decision.OUTPUT_CHANGED: 6,
}
