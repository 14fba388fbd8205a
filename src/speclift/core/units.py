"""Names for base units. Values are held in these everywhere; only core/quantities.py formats them."""

from __future__ import annotations

from typing import TypeAlias

Seconds: TypeAlias = float
Bytes: TypeAlias = int
Tokens: TypeAlias = int
