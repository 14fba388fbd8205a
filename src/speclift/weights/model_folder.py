"""Is this Hugging Face folder the model that was measured before?"""

from __future__ import annotations

import hashlib
from pathlib import Path

from speclift.core.errors import ModelError
from speclift.weights.models import fingerprint

# What decides the text: shape and weights. Tokenizer and template come with the same shape in practice.
PARTS = ("config.json", "*.safetensors", "*.bin")


def folder_fingerprint(folder: Path) -> str:
    """SHA-256 over names and fingerprints of the parts; marked "partial:" where one of them is."""
    parts = sorted({path for pattern in PARTS for path in folder.glob(pattern)})
    if not parts:
        raise ModelError(f"{folder} holds neither config.json nor weights", hint="check the path")
    prints = {path.name: fingerprint(path) for path in parts}
    digest = hashlib.sha256(repr(sorted(prints.items())).encode()).hexdigest()
    is_partial = any(each.startswith("partial:") for each in prints.values())
    return f"partial:{digest}" if is_partial else digest
