"""The site builds without a warning, has a page for every public name, no broken link, and is accessible."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

import halfguard
from halfguard import ops, testing
from halfguard.catalogue import all_entries
from tests.support.docs import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


class Page(HTMLParser):
    """The links and the anchors of one page, and what a screen reader or a keyboard cannot use."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.unusable: list[str] = []
        self._outer = ""
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors.add(given.get("id") or "")
        self.links.add(given.get("href" if tag in {"a", "link"} else "src") or "")
        if self._lacks(tag, given):
            self.unusable.append(self.get_starttag_text() or tag)
        self._outer = given.get("class") or ""

    def _lacks(self, tag: str, given: dict[str, str | None]) -> bool:
        classes = (given.get("class") or "").split()
        scrolls = "table-wrapper" in classes or (tag == "pre" and self._outer == "highlight")
        return (
            (given.get("role") == "heading" and "aria-level" not in given)
            or (tag == "aside" and "aria-label" not in given)
            or (tag == "img" and not given.get("alt"))
            or (tag == "html" and "lang" not in given)
            or (scrolls and given.get("tabindex") != "0")
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, str(ROOT / "scripts/site"), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {file: Page(file) for file in site.rglob("*.html")}


def test_every_public_name_has_a_page(site: Path) -> None:
    named = {f"halfguard.{name}" for name in halfguard.__all__} - {
        "halfguard.__version__",
        "halfguard.formats",  # modules: their names have pages
        "halfguard.ops",
    }
    named |= {f"halfguard.ops.{name}" for name in ops.__all__}
    named |= {f"halfguard.testing.{name}" for name in testing.__all__}
    for name in sorted(named):
        page = (site / "reference" / "api" / name / "index.html").read_text()
        assert f'id="{name}"' in page, name


def test_every_rule_has_a_page(site: Path) -> None:
    for one in all_entries():
        page = (site / "reference" / "rules" / one.code / "index.html").read_text()
        assert one.name in page, one.code


def test_no_link_within_the_site_is_broken(site: Path, pages: dict[Path, Page]) -> None:
    assert len(pages) > 150
    there = {path: path.is_dir() for path in [site, *site.rglob("*")]}
    broken = []
    for file, page in pages.items():
        for link in page.links:
            address, anchor = urldefrag(link)
            if not link or urlsplit(link).scheme:
                continue
            path = os.path.normpath(file.parent / unquote(address.partition("?")[0]))
            target = Path(path) if address else file
            target = target / "index.html" if there.get(target) else target
            found = target in there and (
                not anchor or target not in pages or anchor in pages[target].anchors
            )
            if not found:
                broken.append(f"{file.relative_to(site)}: {link}")
    assert broken == []


def test_every_page_can_be_used_with_a_screen_reader_and_a_keyboard(
    site: Path, pages: dict[Path, Page]
) -> None:
    unusable = {
        str(file.relative_to(site)): page.unusable for file, page in pages.items() if page.unusable
    }
    assert unusable == {}
