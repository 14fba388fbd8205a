"""A config for `vllm serve --config`, or JSON with the same keys: flat, with the speculative config nested. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from speclift.core.errors import UsageError
from speclift.linter import llamacpp_flags, vllm_flags
from speclift.linter.pasted import Engine, Form, Pasted, Setting
from speclift.linter.vllm_keys import KEY_ROWS
from speclift.linter.yaml_text import read_yaml


def read_config(text: str, *, engine: Engine | None) -> Pasted:
    document = read_yaml(text)
    if not isinstance(document, Mapping):
        raise UsageError("this config is no map of settings", hint="such as `tensor-parallel-size: 2`")
    if "services" in document or "apiVersion" in document:
        raise UsageError(
            "this is a container manifest, which is not read yet", hint="paste the command that it runs"
        )
    seen = engine or _engine(document)
    if seen is None:
        few = ", ".join(str(key)[:40] for key in list(document)[:5])
        raise UsageError(
            "no key of this config is known to an engine",
            hint=f"saw {few}; say which with --engine vllm or llamacpp",
        )
    if seen == "vllm" and _is_speculative_config(document):
        document = {"speculative-config": document}
    settings = [_setting(str(key), value, seen) for key, value in document.items()]
    return Pasted(engine=seen, form=Form.CONFIG, settings=tuple(settings))


def _is_speculative_config(document: Mapping[str, object]) -> bool:
    """Only the dict that goes into speculative_config was pasted."""
    names = {str(key).replace("-", "_") for key in document}
    return names <= KEY_ROWS.keys() and bool(names & {"method", "num_speculative_tokens"})


def _setting(key: str, value: object, engine: Engine) -> Setting:
    name = f"--{key.lstrip('-').replace('_', '-')}"
    if engine == "vllm" and name in vllm_flags.FLAG_ROWS:
        name = vllm_flags.FLAG_ROWS[name].name
    return Setting(name=name, spelled=key, value=value)


def _engine(document: Mapping[str, object]) -> Engine | None:
    names = [f"--{str(key).lstrip('-').replace('_', '-')}" for key in document]
    for_vllm = sum(name in vllm_flags.FLAG_ROWS for name in names) + 9 * _is_speculative_config(document)
    for_llama = sum(name in llamacpp_flags.FLAG_ROWS for name in names)
    if not for_vllm and not for_llama:
        return None
    return "vllm" if for_vllm >= for_llama else "llamacpp"
