"""YAML to write to a file: whatever a text holds, it is that text again when it is read."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from speclift.core.quantities import printable

# A head line is for readers; longer ones are cut.
HEAD_CHARACTERS = 400


class _Plain(yaml.SafeDumper):
    """Lists indented under their key, as people write them, and no aliases."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: object) -> bool:
        return True


class LinesOfText(str):
    """A text of several lines that is to be read in the file, line by line, where YAML has a way to write it so."""


def _as_lines(dumper: yaml.SafeDumper, text: LinesOfText) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style="|")


_Plain.add_representer(LinesOfText, _as_lines)


def yaml_file(*documents: object, head: Sequence[str] = ()) -> str:
    """`head` as comments: one line each, since a line break in it would end the comment."""
    comments = "".join(f"# {printable(line, limit=HEAD_CHARACTERS)}\n" for line in head)
    texts = [
        yaml.dump(document, Dumper=_Plain, sort_keys=False, width=110, allow_unicode=False)
        for document in documents
    ]
    return comments + "---\n".join(texts)
