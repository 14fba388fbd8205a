"""A tokenizer from a GGUF file, a tokenizer.json or a Hugging Face folder, with the chat template beside it.

Byte-level vocabularies are encoded by weights/byte_pair.py; for others the package tokenizers is used where it is
installed.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from speclift.core.errors import ModelError, UsageError
from speclift.core.json_reading import as_list, as_object, as_objects, as_text, as_whole
from speclift.core.traffic import Message
from speclift.weights import models
from speclift.weights.byte_pair import GGUF_IGNORING_MERGES, GGUF_PATTERNS, GPT2_PATTERNS, BytePair
from speclift.weights.gguf_file import read_vocabulary
from speclift.weights.gguf_header import STRING, Array, Header, open_gguf
from speclift.weights.hf_folder import hub_folder


class ChatTemplate:
    """`render` gives None where the template refuses the messages or asks for more than was logged."""

    def __init__(self, text: str, *, bos: str, eos: str) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_refuse, bos_token=bos, eos_token=eos)
        self._template: Template | None = None
        with suppress(TemplateError):
            self._template = environment.from_string(text)

    def render(self, messages: Sequence[Message]) -> str | None:
        if self._template is None:
            return None
        said = [{"role": message.role, "content": message.content} for message in messages]
        try:
            return self._template.render(messages=said, add_generation_prompt=True)
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError):
            return None


def joined(messages: Sequence[Message]) -> str:
    return "\n".join(message.content for message in messages) + "\n"


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


TOKENIZER = "tokenizer.json"
TOKENIZER_BYTES_MAX = 1 << 28
# tokenizer.ggml.token_type (llama.h, llama_token_type): tokens that stand for themselves in text.
_CONTROL, _USER_DEFINED = 3, 4
IDS_HINT = "logs with prompt_token_ids and response_token_ids need no tokenizer"


class Encoder(Protocol):
    @property
    def size(self) -> int: ...

    def encode(self, text: str, *, parse_special: bool) -> list[int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    name: str
    encoder: Encoder
    # Put before every prompt that does not begin with it.
    bos_id: int | None
    # Ends an answer that was not cut off.
    eos_id: int | None
    template: ChatTemplate | None


def load_tokenizer(reference: str) -> Tokenizer:
    """A path, a catalogue name, or an id in the local Hugging Face cache."""
    path = Path(reference)
    if path.is_dir():
        return _from_folder(path, name=reference)
    if path.suffix.lower() == ".json" or path.name == TOKENIZER:
        return _from_json(path, path.parent, name=reference)
    folder = None if path.exists() else hub_folder(reference)
    if folder is not None:
        return _from_folder(folder, name=reference)
    return _from_gguf(models.resolve(reference), name=reference)


def _from_gguf(path: Path, *, name: str) -> Tokenizer:
    vocabulary = read_vocabulary(path)
    if vocabulary.type != "bpe":
        raise ModelError(
            f"the tokenizer in {path} is of type {vocabulary.type}; only byte-level BPE is read from GGUF",
            hint=f"give the model's tokenizer.json with --tokenizer; {IDS_HINT}",
        )
    with open_gguf(path) as header:
        pre = header.text("tokenizer.ggml.pre")
        if pre not in GGUF_PATTERNS:
            raise ModelError(
                f"the pre-tokenizer {pre!r} of {path} is unknown here",
                hint=f"give the model's tokenizer.json with --tokenizer; {IDS_HINT}",
            )
        merges = header.fields.get("tokenizer.ggml.merges")
        if not isinstance(merges, Array) or merges.item_type != STRING:
            raise ModelError(f"{path} carries no merges (tokenizer.ggml.merges)", hint=IDS_HINT)
        # The space between the two halves is never their first character.
        halves = (_halves(str(text)) for text in header.texts(merges))
        template = header.text("tokenizer.chat_template")
        kinds = _token_types(header)
        texts = [text if isinstance(text, str) else text.decode("latin-1") for text in vocabulary.tokens]
        encoder = BytePair(
            vocabulary={text: index for index, text in reversed(list(enumerate(texts)))},
            merges=halves,
            patterns=GGUF_PATTERNS[pre],
            special={texts[i]: i for i, kind in enumerate(kinds) if kind in (_CONTROL, _USER_DEFINED)},
            ignore_merges=pre in GGUF_IGNORING_MERGES,
        )

    def text_of(token: int | None) -> str:
        return texts[token] if token is not None and token < len(texts) else ""

    return Tokenizer(
        name=name,
        encoder=encoder,
        bos_id=vocabulary.bos_id if vocabulary.add_bos else None,
        eos_id=vocabulary.eos_id,
        template=_template(template, bos=text_of(vocabulary.bos_id), eos=text_of(vocabulary.eos_id)),
    )


def _token_types(header: Header) -> tuple[int, ...]:
    return header.per_layer("tokenizer.ggml.token_type", layers=0)


def _from_folder(folder: Path, *, name: str) -> Tokenizer:
    path = folder / TOKENIZER
    if not path.is_file():
        raise ModelError(f"{folder} holds no {TOKENIZER}", hint=f"give the file itself; {IDS_HINT}")
    return _from_json(path, folder, name=name)


def _from_json(path: Path, folder: Path, *, name: str) -> Tokenizer:
    data = _read_json(path)
    model = data.get("model")
    if not isinstance(model, dict):
        raise ModelError(
            f"{path} is not a tokenizer: it has no model", hint=f"a {TOKENIZER} has one; {IDS_HINT}"
        )
    settings = _read_json(folder / "tokenizer_config.json", missing_ok=True)
    added = as_objects(data.get("added_tokens"))
    ids = {str(token.get("content")): id for token in added if (id := as_whole(token.get("id"))) is not None}
    bos, eos = (_token_text(settings.get(key)) for key in ("bos_token", "eos_token"))
    unreadable = _why_not_ours(data, model)
    encoder = _from_library(path, unreadable) if unreadable else _byte_pair(data, model, ids, path)
    adds_bos = bool(settings.get("add_bos_token")) or _template_adds(data.get("post_processor"), bos)
    return Tokenizer(
        name=name,
        encoder=encoder,
        bos_id=ids.get(bos) if adds_bos else None,
        eos_id=ids.get(eos),
        template=_template(_chat_template(folder, settings), bos=bos, eos=eos),
    )


def _why_not_ours(data: Mapping[str, object], model: Mapping[str, object]) -> str:
    """Which part of a tokenizer.json byte_pair.py cannot do; '' where it can do all."""
    if model.get("type", "BPE") != "BPE" or model.get("byte_fallback"):
        return f"its model is {model.get('type', 'BPE with byte fallback')}"
    normalizer = data.get("normalizer")
    if normalizer is not None and as_object(normalizer).get("type") != "NFC":
        return "it normalises text"
    return "" if _patterns(data.get("pre_tokenizer")) is not None else "its pre-tokenizer is unusual"


def _byte_pair(
    data: Mapping[str, object], model: Mapping[str, object], special: Mapping[str, int], path: Path
) -> BytePair:
    vocabulary, merges = model.get("vocab"), model.get("merges")
    if not isinstance(vocabulary, dict) or not isinstance(merges, list):
        raise ModelError(f"{path} is damaged: its model has no vocab or no merges", hint="download it again")
    pairs = [_halves(pair) if isinstance(pair, str) else (str(pair[0]), str(pair[1])) for pair in merges]
    return BytePair(
        vocabulary=vocabulary,
        merges=pairs,
        patterns=_patterns(data.get("pre_tokenizer")) or (),
        special=special,
        ignore_merges=bool(model.get("ignore_merges")),
        form="NFC" if data.get("normalizer") else None,
    )


def _patterns(value: object) -> tuple[str, ...] | None:
    """The splits of a pre-tokenizer in order; None where one is neither a split, digits nor byte-level."""
    pre_tokenizer = as_object(value)
    match pre_tokenizer.get("type"):
        case "Sequence":
            return _patterns_of_all(as_list(pre_tokenizer.get("pretokenizers")))
        case "ByteLevel" if not pre_tokenizer.get("add_prefix_space"):
            return GPT2_PATTERNS if pre_tokenizer.get("use_regex", True) else ()
        case "Digits":
            return (r"\p{N}",) if pre_tokenizer.get("individual_digits") else (r"\p{N}+",)
        case "Split" if pre_tokenizer.get("behavior") == "Isolated" and not pre_tokenizer.get("invert"):
            expression = as_text(as_object(pre_tokenizer.get("pattern")).get("Regex"))
            return None if expression is None else (expression,)
        case _:
            return None


def _patterns_of_all(parts: Sequence[object]) -> tuple[str, ...] | None:
    patterns: list[str] = []
    for part in parts:
        known = _patterns(part)
        if known is None:
            return None
        patterns += known
    return tuple(patterns)


class _Encoding(Protocol):
    ids: Sequence[int]


class _LibraryTokenizer(Protocol):
    """As much of the package's own class as is used."""

    def get_vocab_size(self) -> int: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> _Encoding: ...


class _LibraryEncoder:
    """The package tokenizers, for everything byte_pair.py does not do."""

    def __init__(self, tokenizer: _LibraryTokenizer) -> None:
        self._tokenizer = tokenizer

    @property
    def size(self) -> int:
        return self._tokenizer.get_vocab_size()

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        # The library finds special tokens in any text; a model's answer hardly ever spells one.
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


def _from_library(path: Path, reason: str) -> Encoder:
    if importlib.util.find_spec("tokenizers") is None:
        raise ModelError(
            f"{path} needs the package tokenizers: {reason}",
            hint=f"pip install 'speclift[replay]'; {IDS_HINT}",
        )
    import tokenizers

    load: Callable[[str], _LibraryTokenizer] = tokenizers.Tokenizer.from_file
    return _LibraryEncoder(load(str(path)))


def _read_json(path: Path, *, missing_ok: bool = False) -> dict[str, object]:
    if missing_ok and not path.is_file():
        return {}
    try:
        if path.stat().st_size > TOKENIZER_BYTES_MAX:
            raise UsageError(f"{path} is larger than {TOKENIZER_BYTES_MAX:,} bytes: not a tokenizer")
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(
            f"cannot read --tokenizer {path}: {error.strerror or error}", hint=IDS_HINT
        ) from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON: {error}", hint=f"give a {TOKENIZER} or a GGUF file") from error
    if not isinstance(data, dict):
        raise ModelError(f"{path} is not a tokenizer: it holds a {type(data).__name__}", hint=IDS_HINT)
    return data


def _halves(text: str) -> tuple[str, str]:
    left, _, right = text[1:].partition(" ")
    return text[:1] + left, right


def _token_text(value: object) -> str:
    return as_text(value.get("content") if isinstance(value, dict) else value) or ""


def _template_adds(post_processor: object, bos: str) -> bool:
    """Llama 3 has no add_bos_token; its post-processor puts the token first."""
    return bool(bos) and json.dumps(bos) in json.dumps(post_processor)


def _chat_template(folder: Path, settings: Mapping[str, object]) -> str:
    own = folder / "chat_template.jinja"
    if own.is_file():
        return own.read_text(encoding="utf-8", errors="replace")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several, by name
        template = next(
            (entry.get("template") for entry in as_objects(template) if entry.get("name") == "default"), None
        )
    return as_text(template) or ""


def _template(text: str, *, bos: str, eos: str) -> ChatTemplate | None:
    return ChatTemplate(text, bos=bos, eos=eos) if text else None
