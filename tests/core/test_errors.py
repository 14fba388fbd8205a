from __future__ import annotations

import pytest

from speclift.core.errors import (
    EngineError,
    ModelError,
    OperatingError,
    SpecliftError,
    StudyError,
    UsageError,
    unknown_name,
)


class TestUnknownName:
    @pytest.mark.parametrize(
        ("seen", "message"),
        [
            ("thrughput", "unknown metric 'thrughput'. Did you mean 'throughput'?"),
            ("tpt", "unknown metric 'tpt'. Did you mean 'tpot'?"),
            ("zzz", "unknown metric 'zzz'."),
            ("", "unknown metric ''."),
        ],
    )
    def test_offers_the_nearest_match_where_there_is_one(self, seen: str, message: str) -> None:
        assert str(unknown_name(what="metric", seen=seen, allowed=("tpot", "throughput"))) == message

    def test_lists_what_is_allowed_even_from_an_iterator(self) -> None:
        error = unknown_name(what="metric", seen="x", allowed=iter(["tpot", "e2e"]))

        assert error.hint == "allowed: tpot, e2e"

    def test_shows_control_characters_as_escapes(self) -> None:
        assert "\x1b" not in str(unknown_name(what="metric", seen="\x1b[31m", allowed=("tpot",)))


class TestTree:
    @pytest.mark.parametrize("kind", [EngineError, ModelError, StudyError])
    def test_what_the_world_did_wrong_is_an_operating_error(self, kind: type[SpecliftError]) -> None:
        assert issubclass(kind, OperatingError)
        assert not issubclass(kind, UsageError)

    def test_everything_raised_on_purpose_can_be_caught_at_once(self) -> None:
        assert issubclass(UsageError, SpecliftError)
        assert issubclass(OperatingError, SpecliftError)

    def test_an_engine_error_keeps_the_end_of_the_log(self) -> None:
        error = EngineError("died", hint="look", log_tail="last words")

        assert (str(error), error.hint, error.log_tail) == ("died", "look", "last words")
