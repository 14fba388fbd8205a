"""Flags that take several values for a search: what is read, what is refused, where they go."""

from __future__ import annotations

import pytest

from speclift.bench.ask import Ask
from speclift.cli.options import Flags
from speclift.core.errors import UsageError


def asked(**flags: str) -> Ask:
    shared = Flags(Ask)
    options = {parameter.name: parameter.default for parameter in shared.parameters()}
    return Ask.of(**shared.given({**options, **flags}))


def test_several_values_are_for_a_search() -> None:
    ask = asked(target_quant="fp8,awq", draft_quant="fp8", draft_tp="1,2", token_budget="2048,8192")
    assert (ask.target_quants, ask.draft_quants) == (("fp8", "awq"), ("fp8",))
    assert (ask.draft_tps, ask.token_budgets) == ((1, 2), (2048, 8192))
    assert ask.has_variants
    assert not asked(target_quant="fp8").has_variants


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"token_budget": "0"}, "--token-budget must be at least 1"),
        ({"draft_tp": "two"}, "--draft-tp takes numbers with commas"),
    ],
)
def test_a_wrong_number_is_named_with_its_flag(flags: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        asked(**flags)
