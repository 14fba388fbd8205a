"""llama.cpp's facts (facts/*.toml) as tables, and the builds in which its rules changed. Pure."""

from __future__ import annotations

from speclift.core.engine_facts import engine_facts
from speclift.linter.rows import Release, tables_of

_TABLES = tables_of(
    engine_facts("llamacpp/facts/flags.toml"), engine="llama.cpp", where="llamacpp/facts/flags.toml"
)
# TYPES are values of --spec-type.
FLAGS, TYPES, PROGRAMS, VARIABLES = (_TABLES[name] for name in ("flags", "types", "programs", "variables"))
NEWEST = FLAGS.newest
SERVER, CLI = "server", "cli"
KEPT_ALIASES = {row.name: row.today for row in FLAGS if row.today is not None}
# What a request carries, not a server: dropped where one of those programs becomes llama-server.
REQUEST_FLAGS = frozenset(FLAGS.groups["of-a-request"].split())
# Where it listens and who may ask: a launch of ours has its own.
LISTENING = frozenset(FLAGS.groups["listening"].split())

SELF_SPECULATION = FLAGS["--spec-type"].since
RENAMES = FLAGS["--spec-draft-n-max"].since
TYPES_SINCE = TYPES["draft-simple"].since  # and comma lists, PR 22964
DEFAULTS: Release = (9235,)  # n-max 16 -> 3, p-min 0.75 -> 0, PR 23269
NO_IMPLIED_DRAFT: Release = (9464,)  # a draft model alone drafts nothing any more, PR 23988
