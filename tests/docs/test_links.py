"""Whoever follows a link arrives, and every page can be found from the front page; the front page stays short."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README, INDEX, GLOSSARY = ROOT / "README.md", DOCS / "README.md", DOCS / "glossary.md"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
README_LINES_MAX = 75
PROSE_COLUMNS_MAX = 100


def targets(page: Path) -> Iterator[Path]:
    """Files that a page links to; addresses of the web are not looked up."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            yield (page.parent / target.partition("#")[0]).resolve()


def reachable(page: Path) -> set[Path]:
    seen, ahead = {page}, [page]
    while ahead:
        for target in targets(ahead.pop()):
            if target not in seen and target.suffix == ".md":
                seen.add(target)
                ahead.append(target)
    return seen


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file(page: Path) -> None:
    assert [str(target) for target in targets(page) if not target.exists()] == []


def test_every_page_is_named_in_the_index() -> None:
    listed = set(targets(INDEX))
    assert [str(page) for page in DOCS.rglob("*.*") if is_page(page) and page not in listed] == []


def is_page(path: Path) -> bool:
    return path != INDEX and (path.suffix == ".md" or path.name.endswith(".schema.json"))


def test_every_page_can_be_reached_from_the_front_page() -> None:
    assert set(PAGES) - reachable(README) == set()


def test_words_are_explained_where_people_start() -> None:
    assert GLOSSARY in set(targets(README)) & set(targets(INDEX))


def test_a_link_that_leads_nowhere_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[here](page.md#top) [gone](gone.md) [web](https://example.com/x)")
    assert [target.name for target in targets(page) if not target.exists()] == ["gone.md"]


def test_the_front_page_is_read_in_a_minute() -> None:
    text = README.read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    assert len(text.splitlines()) <= README_LINES_MAX
    assert [line for line in prose.splitlines() if len(line) > PROSE_COLUMNS_MAX] == []
