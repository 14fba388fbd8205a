"""Records written together: all of them on disk afterwards, whatever ended it."""

from __future__ import annotations

from pathlib import Path

import pytest

from samples import launch, new_study, record
from speclift.core.errors import StudyError
from speclift.studies.study import Study


def ids(path: Path) -> list[str]:
    with Study.open(path) as study:
        return [each.place.request_id for each in study.records()]


def test_they_are_on_disk_when_it_ends_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "study"
    with new_study(path) as study:
        study.add_launch(launch())
        with study.together():
            study.add_record(record(request_id="p1"))
            assert ids(path) == []
            study.add_record(record(request_id="p2"))

        assert ids(path) == ["p1", "p2"]


def test_a_failure_in_the_middle_keeps_what_came_before(tmp_path: Path) -> None:
    path = tmp_path / "study"
    with new_study(path) as study:
        study.add_launch(launch())

        def write() -> None:
            with study.together():
                study.add_record(record(request_id="p1"))
                raise StudyError("something else went wrong")

        with pytest.raises(StudyError, match="something else"):
            write()
        study.add_record(record(request_id="p2"))

    assert ids(path) == ["p1", "p2"]
