"""llama.cpp's command line: many programs, and every spelling of a flag is a row of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence

from speclift.core.engine_facts import metrics_of
from speclift.core.errors import UsageError
from speclift.engines.llamacpp.dialect.judgement import judge_llamacpp, read_llamacpp
from speclift.engines.llamacpp.dialect.own_line import is_speculative_flag, take_apart_llamacpp
from speclift.engines.llamacpp.dialect.tables import FLAGS, LISTENING, NEWEST
from speclift.engines.llamacpp.dialect.translation import translate_llamacpp
from speclift.linter.dialect import (
    Dialect,
    Judgement,
    Spelling,
    Started,
    base_name,
    is_after_flag,
    release_part,
)
from speclift.linter.metrics import MetricNames
from speclift.linter.pasted import Pasted, TakenApart
from speclift.linter.rows import Release

# Names of the programs before llama.cpp prefixed them; too common to prove anything without a GGUF in sight.
_OLD_PROGRAMS = ("server", "main", "speculative")


class LlamaDialect(Dialect):
    engine = "llamacpp"
    newest = NEWEST
    flags = FLAGS
    programs = (
        "llama-server", "llama-cli", "llama-run", "llama-speculative", "llama-speculative-simple", "llama-lookup",
        "llama",
    )  # fmt: skip
    examples = ("llama-server",)
    image = re.compile(r"(^|/)llama\.cpp(:|@|$)")
    image_starts = ("llama-server",)
    listening = LISTENING
    metrics = MetricNames.of(metrics_of("llamacpp"), title="llama.cpp")

    def image_release(self, image: str) -> str | None:
        """`ghcr.io/ggml-org/llama.cpp:server-b9000`."""
        match = re.search(r":[\w-]*?(b\d{4,})$", image)
        return None if match is None else match[1]

    def parse_release(self, text: str) -> Release:
        """`b8000`, `8000`."""
        build = re.search(r"\d+(?:\.\d+)*", text)
        # The xllamacpp wheel carries the build as the last part of its version: 2026.10.11549.
        if build is not None:
            return (release_part(build[0].rpartition(".")[2], text),)
        raise UsageError(
            f"--engine-version {text!r} is not a llama.cpp build",
            hint="such as b11549 (llama-server --version)",
        )

    def find_program(
        self, word: str, before: Sequence[str], after: Sequence[str], *, is_asked: bool
    ) -> Started | None:
        name = base_name(word)
        if name in self.programs and not is_after_flag(before):
            has_verb = name == "llama" and after[:1] in (["serve"], ["cli"])
            program = (word, after[0]) if has_verb else (word,)
            return Started(wrapper=before, program=program, arguments=after[len(program) - 1 :])
        if name in _OLD_PROGRAMS and not before and (is_asked or _mentions_gguf(after)):
            return Started(wrapper=before, program=(word,), arguments=after)
        return None

    def find_row(self, spelled: str, release: Release | None) -> Spelling:
        """Underscores for dashes, as its parser takes them."""
        name = spelled.replace("_", "-") if spelled.startswith("--") else spelled
        return name, self.flags.find(name), False

    def is_speculative(self, pasted: Pasted) -> bool:
        reading = read_llamacpp(pasted)
        return bool(reading.draft or reading.types)

    def models(self, pasted: Pasted) -> tuple[str, ...]:
        """Ids of repositories; what files hold is not looked at."""
        named = (pasted.last("-hf", "-hfr", "--hf-repo"), pasted.last("-hfd", "-hfrd", "--hf-repo-draft"))
        return tuple(name.partition(":")[0] for name in named if isinstance(name, str))

    def is_speculation(self, name: str) -> bool:
        return is_speculative_flag(name)

    def taken_apart(self, pasted: Pasted) -> TakenApart:
        return take_apart_llamacpp(pasted)

    def judge(self, pasted: Pasted, release: Release, *, version: str) -> Judgement:
        reading = read_llamacpp(pasted)
        return judge_llamacpp(reading, release=release), translate_llamacpp(reading)


def _mentions_gguf(words: Sequence[str]) -> bool:
    return any(word.endswith(".gguf") for word in words) or any(
        word in ("-md", "-hf", "-ngl") for word in words
    )


DIALECT = LlamaDialect()
