"""Flags that take several values for a search: what is read, what is refused, where they go."""

from __future__ import annotations

import pytest

from running import Cli
from speclift.bench.ask import Ask
from speclift.cli.options import ask_from_options, words
from speclift.core.errors import UsageError


def asked(**flags: str) -> Ask:
    return ask_from_options(**flags)  # type: ignore[arg-type]


def test_the_first_value_is_the_servers_own_and_the_others_are_for_the_search() -> None:
    ask = asked(target_quant="fp8,awq", draft_quant="fp8", draft_tp="1,2", token_budget="2048,8192")
    assert (ask.target_quant, ask.more_target_quants) == ("fp8", ("awq",))
    assert (ask.draft_quant, ask.more_draft_quants) == ("fp8", ())
    assert (ask.draft_tensor_parallel, ask.more_draft_tensor_parallels) == (1, (2,))
    assert (ask.token_budget, ask.more_token_budgets) == (2048, (8192,))
    assert ask.has_variants
    assert not asked(target_quant="fp8").has_variants


def test_none_is_the_model_as_it_is_and_comes_first() -> None:
    assert words("fp8,none, fp8") == (None, "fp8")
    assert words("") == ()


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


def test_help_of_tune_has_an_example_to_paste(cli: Cli) -> None:
    page = cli("tune", "--help").stdout
    assert "Example:\n    speclift tune " in page
    assert "--budget" in page
