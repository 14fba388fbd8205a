"""Models that come with the package: small enough to carry, made for one target, of no use without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from speclift.core.errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledDraft:
    name: str
    title: str
    licence: str
    # The catalogue name of the only model that it drafts for.
    target: str
    file_name: str
    sha256_hex: str

    @property
    def path(self) -> Path:
        return Path(__file__).parent / "bundled" / self.file_name

    def checked_path(self) -> Path:
        """A checkout without its large files, or half an installation, has something else under that name."""
        if not self.path.is_file() or sha256(self.path.read_bytes()).hexdigest() != self.sha256_hex:
            raise ModelError(
                f"{self.name} is missing or damaged: {self.path}.", hint="install speclift again"
            )
        return self.path


SMOLLM2_135M_DRAFT = BundledDraft(
    name="smollm2-135m-draft",
    title="a draft of 15.7 million parameters, distilled from SmolLM2-135M-Instruct",
    licence="Apache-2.0",
    target="smollm2-135m",
    file_name="smollm2-135m-draft-q4_0.gguf",
    sha256_hex="3cca3192a568c60a08ce8c26a0e022513eef8dbde4366efd017824779d27afc1",
)

BUNDLED: Mapping[str, BundledDraft] = {SMOLLM2_135M_DRAFT.name: SMOLLM2_135M_DRAFT}


def draft_for(target: str) -> BundledDraft | None:
    """The bundled draft of a catalogue model."""
    return next((draft for draft in BUNDLED.values() if draft.target == target), None)
