"""Tokenizers from files: what is read, what is refused, and that refusing names the way out."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from speclift.core.errors import ModelError, SpecliftError
from speclift.core.traffic import Message
from speclift.weights import byte_pair
from speclift.weights.tokenizer_files import load_tokenizer

BYTES = {character: index for index, character in enumerate(byte_pair._BYTE_CHARACTERS)}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
SPLIT = {"type": "Split", "pattern": {"Regex": r"\p{N}| ?\p{L}+"}, "behavior": "Isolated", "invert": False}


def added(token: int, text: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": text, "special": True, **flags}


def tokenizer_json(**changes: Any) -> dict[str, Any]:
    return {
        "version": "1.0",
        "added_tokens": [added(300, "<s>"), added(301, "</s>")],
        "normalizer": None,
        "pre_tokenizer": BYTE_LEVEL,
        "post_processor": None,
        "model": {"type": "BPE", "vocab": BYTES | {"lo": 256, "low": 257}, "merges": [["l", "o"], "lo w"]},
        **changes,
    }


def folder_of(path: Path, tokenizer: object, **settings: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_hugging_face_folder_gives_tokens_their_end_and_the_template(tmp_path: Path) -> None:
    folder = folder_of(
        tmp_path / "m",
        tokenizer_json(),
        bos_token={"content": "<s>"},
        eos_token="</s>",
        add_bos_token=True,
        chat_template="{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}",
    )
    found = load_tokenizer(str(folder))

    assert found.encoder.encode("low</s>", parse_special=True) == [257, 301]
    assert (found.bos_id, found.eos_id, found.encoder.size) == (300, 301, 302)
    assert found.template is not None
    assert found.template.render((Message(role="user", content="low"),)) == "low</s>"


@pytest.mark.parametrize(
    ("pre_tokenizer", "expected"),
    [
        (BYTE_LEVEL, [257, BYTES["Ġ"], BYTES["1"], BYTES["2"]]),
        (SPLIT, [257, BYTES["Ġ"], BYTES["1"], BYTES["2"]]),
        (
            {
                "type": "Sequence",
                "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL],
            },
            [257, BYTES["Ġ"], BYTES["1"], BYTES["2"]],
        ),
    ],
)
def test_usual_pre_tokenizers_are_understood(
    tmp_path: Path, pre_tokenizer: dict[str, Any], expected: list[int]
) -> None:
    found = load_tokenizer(str(folder_of(tmp_path / "m", tokenizer_json(pre_tokenizer=pre_tokenizer))))

    assert found.encoder.encode("low 12", parse_special=False) == expected


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": {"type": "Unigram", "vocab": [["a", -1.0]]}}, "its model is Unigram"),
        ({"normalizer": {"type": "Lowercase"}}, "it normalises text"),
        ({"pre_tokenizer": {"type": "Metaspace"}}, "pre-tokenizer is unusual"),
        ({"pre_tokenizer": None}, "pre-tokenizer is unusual"),
    ],
)
@pytest.mark.skipif(importlib.util.find_spec("tokenizers") is not None, reason="the package is installed")
def test_what_needs_the_package_names_it_and_the_way_without(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ModelError, match=reason) as caught:
        load_tokenizer(str(folder_of(tmp_path / "m", tokenizer_json(**changes))))

    assert "speclift[replay]" in caught.value.hint
    assert "prompt_token_ids" in caught.value.hint


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"\x00\xff binary", ModelError, "is not JSON"),
        (b"[1, 2]", ModelError, "is not a tokenizer: it holds a list"),
        (b"{}", ModelError, "it has no model"),
        (b'{"model": {"type": "BPE"}, "pre_tokenizer": {"type": "ByteLevel"}}', ModelError, "no vocab"),
    ],
    ids=["binary", "list", "empty", "no vocabulary"],
)
def test_a_damaged_tokenizer_says_what_it_is(
    tmp_path: Path, content: bytes, error: type[SpecliftError], message: str
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(error, match=message):
        load_tokenizer(str(path))
