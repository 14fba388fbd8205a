"""Messages to the text a model really saw: its own chat template, or the messages joined where there is none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from speclift.core.traffic import Message


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
