"""Writes the schemas of this folder anew from the types of the documents: make schemas."""

from __future__ import annotations

import json
from pathlib import Path

from speclift.views.schema import PUBLISHED, published_schema

if __name__ == "__main__":
    for name in PUBLISHED:
        path = Path(__file__).with_name(f"{name}.schema.json")
        path.write_text(json.dumps(published_schema(name), indent=1) + "\n", encoding="utf-8")
