"""A flag is declared once: its field, its key and its argument in Python are named alike."""

from __future__ import annotations

import pytest

from speclift.bench.ask import Ask, PlanAsk, ReplayAsk
from speclift.core.arm import ServerSettings
from speclift.core.errors import UsageError
from speclift.core.flags import (
    declared_flags,
    read_counts,
    read_size_bytes,
)

UNITS = ("_s", "_tokens", "_bytes")


def is_named_alike(field_name: str, key: str) -> bool:
    """`ks` for --k, `budget_s` for --budget, `context_tokens` for --context."""
    return field_name in (key, f"{key}s", *(f"{key}{unit}" for unit in UNITS))


@pytest.mark.parametrize("asked", [Ask, PlanAsk, ReplayAsk])
def test_a_field_is_named_like_its_flag(asked: type) -> None:
    unlike = [flag.field for flag in declared_flags(asked) if not is_named_alike(flag.field, flag.key)]
    assert unlike == []


@pytest.mark.parametrize("asked", [Ask, PlanAsk, ReplayAsk])
def test_no_name_stands_for_two_flags_and_every_flag_says_what_it_does(asked: type) -> None:
    names = [name for flag in declared_flags(asked) for name in flag.names]
    assert len(names) == len(set(names))
    assert all(flag.flag.help.endswith(".") for flag in declared_flags(asked))


def test_what_belongs_to_a_part_goes_to_that_part() -> None:
    ask = Ask.of(engine="fake", threads=3, min_speedup=1.1, baseline_url="http://127.0.0.1:1", ks=(2,))
    assert (ask.engine, ask.ks) == ("fake", (2,))
    assert ask.server.threads == 3
    assert ask.goals.min_speedup == 1.1
    assert ask.attach.baseline_url == "http://127.0.0.1:1"
    assert Ask.of() == Ask()


def test_a_name_that_is_none_is_refused_with_the_one_that_is_near() -> None:
    with pytest.raises(UsageError, match="'thread'") as raised:
        Ask.of(thread=3)
    assert "threads" in raised.value.hint


def test_a_part_and_what_is_in_it_cannot_both_be_given() -> None:
    assert Ask.of(server=ServerSettings(threads=2)).server.threads == 2
    with pytest.raises(UsageError, match="server and threads were both given"):
        Ask.of(server=ServerSettings(threads=2), threads=3)


def test_keys_and_values_cannot_be_typed_twice() -> None:
    with pytest.raises(UsageError, match="--kv-dtype sets keys and values at once"):
        Ask.of(kv_dtype="fp8", kv_type_k="q8_0")


@pytest.mark.parametrize(
    ("text", "value"), [("256M", 1 << 28), ("1G", 1 << 30), ("1.5 KiB", 1536), ("7", 7), ("2t", 1 << 41)]
)
def test_sizes_are_powers_of_two(text: str, value: int) -> None:
    assert read_size_bytes(text, "--flag") == value


@pytest.mark.parametrize("text", ["0", "", "-1G", "1X", "1e3", "G"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--flag takes a size"):
        read_size_bytes(text, "--flag")


def test_counts_start_at_one_and_stand_once() -> None:
    assert read_counts("2,1,2", "--flag") == (2, 1)
    with pytest.raises(UsageError, match="--flag must be at least 1, saw 0"):
        read_counts("1,0", "--flag")
