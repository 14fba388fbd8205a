"""Which machines of a fleet took part in a study, as the study keeps it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from speclift.core.fleet import NodeFacts
from speclift.core.json_reading import built, need_list, need_object
from speclift.studies.study import Study

# Under this name the study keeps them.
NODES = "nodes"


def keep_nodes(study: Study, facts: Iterable[NodeFacts]) -> None:
    """Beside those that took part before; one that joined again is as it is now."""
    known = {node.name: node for node in (*kept_nodes(study), *facts)}
    study.keep(NODES, {"nodes": [asdict(node) for node in known.values()]})


def kept_nodes(study: Study) -> tuple[NodeFacts, ...]:
    """None of them where the study is of one machine."""
    kept = study.kept(NODES) or {}
    return tuple(built(NodeFacts, need_object(node)) for node in need_list(kept.get("nodes", [])))
