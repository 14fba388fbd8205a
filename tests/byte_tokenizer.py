"""A tokenizer without a model: every byte is a token."""

from __future__ import annotations

import json
from pathlib import Path

from speclift.weights import byte_pair

BYTES = {character: index for index, character in enumerate(byte_pair._BYTE_CHARACTERS)}


def write_byte_tokenizer(folder: Path) -> str:
    """256 ends an answer; the template puts the role before each message."""
    folder.mkdir(exist_ok=True)
    data = {
        "added_tokens": [{"id": 256, "content": "<end>"}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "model": {"type": "BPE", "vocab": BYTES, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    settings = {
        "eos_token": "<end>",
        "chat_template": "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return str(folder)
