"""Drafts in another quantisation, for engines that want them as files of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from msgspec import structs

from speclift.bench.ask import Ask
from speclift.bench.observer import Observer
from speclift.core.speculation import Combined, DraftModel, Head, Speculation, Synthetic, drafters_of
from speclift.engines.kind import engine_kind
from speclift.search.space import with_draft_files


def draft_files(
    speculations: Sequence[Speculation], quantisations: Sequence[str | None], ask: Ask, observer: Observer
) -> dict[tuple[str, str], str]:
    """Every draft in every quantisation that the engine needs as a file of its own; made unless this is a dry run."""
    kind = engine_kind(ask.engine)
    drafters = [part for speculation in speculations for part in drafters_of(speculation)]
    drafts = dict.fromkeys(
        part.model for part in drafters if isinstance(part, DraftModel | Head) and part.model is not None
    )
    files = {}
    for draft, quantisation in product(drafts, filter(None, quantisations)):
        made = kind.draft_file(draft, quantisation, say=observer.say, fetches=ask.fetches)
        if made is not None:
            files[draft, quantisation] = made
    return files


def with_files(speculation: Speculation, files: Mapping[tuple[str, str], str]) -> Speculation:
    match speculation:
        case DraftModel() | Head() | Combined():
            return with_draft_files(speculation, files)
        case Synthetic(inner=DraftModel() | Head() as inner):
            return structs.replace(speculation, inner=with_draft_files(inner, files))
        case _:
            return speculation
