"""What every test may use: the embedded model, a hypothesis profile without deadlines, a cache of its own."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
from hypothesis import settings

from speclift.core.errors import ModelError
from speclift.pipeline.ask import EMBEDDED_MODEL
from speclift.store import models

# The promises of a suite written once are asserted in these modules, not in test files.
pytest.register_assert_rewrite("engine_contract", "processes", "running")

# A deadline measures the machine, not the code.
settings.register_profile("speclift", deadline=None)
settings.load_profile("speclift")


@pytest.fixture(scope="session")
def embedded_model() -> Path:
    """The embedded model from the user's cache; fetched there only where SPECLIFT_FETCH=1 allows it."""
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("the embedded engine is not installed: pip install 'speclift[llama]'")
    try:
        return models.resolve(EMBEDDED_MODEL)
    except ModelError as error:
        if os.environ.get("SPECLIFT_FETCH") == "1":
            return models.fetch(EMBEDDED_MODEL, progress=lambda _text: None)
        pytest.skip(f"{error} SPECLIFT_FETCH=1 lets the tests fetch it.")
