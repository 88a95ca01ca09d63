"""Every document: its links lead somewhere, its files exist, and its lines are of one width."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documents import FOLDERS, ROOT, documents, text_of, wrapped

DOCUMENTS = documents()
every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=str)


def without_code(document: Path) -> str:
    return re.sub(r"^ *```.*?^ *```", "", text_of(document), flags=re.MULTILINE | re.DOTALL)


def links(document: Path) -> list[str]:
    """Return the targets of a document's links within the project."""
    targets = re.findall(r"\]\(([^)\s]+)\)", without_code(document))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(document: Path) -> set[str]:
    """Return the anchors that GitHub makes of a document's headings."""
    headings = re.findall(r"^#+ +(.*?) *$", without_code(document), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings}


def target_of(document: Path, link: str) -> tuple[Path, str]:
    """Return the file that a link means, below the root, and the anchor in it or nothing."""
    path, _, anchor = link.partition("#")
    target = (ROOT / document.parent / path).resolve() if path else ROOT / document
    return target.relative_to(ROOT), anchor


@every_document
def test_links_lead_somewhere(document: Path) -> None:
    for link in links(document):
        target, anchor = target_of(document, link)
        assert (ROOT / target).exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_every_document_is_one_click_from_the_readme() -> None:
    readme = Path("README.md")
    reached = {target_of(readme, link)[0] for link in links(readme)}
    assert {path for path in DOCUMENTS if path != readme} <= reached


@every_document
def test_lines_are_wrapped(document: Path) -> None:
    assert text_of(document) == wrapped(text_of(document)), "wrap it: python -m tests.documents"


def test_wrapping_fills_prose_and_leaves_the_rest() -> None:
    long = ("word " * 30).strip()
    kept = f"# {long}\n\n```\n{long}\n\n{long}\n```\n|{long}\n"
    assert wrapped(kept) == kept
    assert wrapped(f"{long}\n") == ("word " * 20).strip() + "\n" + ("word " * 10).strip() + "\n"
    assert wrapped("- a\n  b\n1. c\nd\n") == "- a b\n1. c d\n"
    assert wrapped("x " * 45 + "`a code span`\n").splitlines()[1] == "`a code span`"
    assert all(wrapped(text_of(path)) == wrapped(wrapped(text_of(path))) for path in DOCUMENTS)


@every_document
def test_files_that_are_named_exist(document: Path) -> None:
    tops = "|".join(map(re.escape, FOLDERS))
    for name in re.findall(rf"(?<![\w/.-])(?:{tops})/[\w./-]+\.\w+", text_of(document)):
        assert (ROOT / name).exists(), name


def test_documents_that_the_code_names_exist() -> None:
    """By their path below the root, or as a neighbour of the file that names them."""
    for top in FOLDERS:
        for source in (ROOT / top).rglob("*.py"):
            for name in re.findall(
                r"(?<![\"'\w/.*>-])[\w./-]+\.md\b", source.read_text(encoding="utf-8")
            ):
                places = (ROOT / name, source.parent / name)
                assert any(place.is_file() for place in places), f"{source}: {name}"
