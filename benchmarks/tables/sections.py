"""Sections of pages written by programs: between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
Place = tuple[Path, str]  # a page, and the name of a section in it


def read_section(place: Place) -> str:
    """Return the text of a section, without the line break at its end."""
    page, _ = place
    return _find(place, page.read_text("utf-8"))[0].removesuffix("\n")


def write_section(place: Place, text: str) -> None:
    """Replace the text of a section."""
    page, _ = place
    old = page.read_text("utf-8")
    found = _find(place, old)
    page.write_text(f"{old[: found.start()]}{text}\n{old[found.end() :]}", "utf-8")


def update_sections(made: dict[Place, str], *, check: bool) -> list[str]:
    """Write sections, or, to check them, return a sentence for each that differs."""
    differ = {place: text for place, text in made.items() if read_section(place) != text}
    if check:
        return [f"{page.name} has another table ({name})" for page, name in differ]
    for place, text in differ.items():
        write_section(place, text)
    return []


def rows_of_section(place: Place) -> list[list[str]]:
    """Return the cells of a Markdown table, without its head."""
    lines = read_section(place).splitlines()[2:]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def markdown_table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])


def _find(place: Place, text: str) -> re.Match[str]:
    page, name = place
    pattern = rf"(?<=<!-- {name}: begin -->\n).*?(?=<!-- {name}: end -->)"
    found = re.search(pattern, text, re.DOTALL)
    if found is None:
        raise SystemExit(
            f"{page.name} lacks the lines <!-- {name}: begin --> and end, in this order."
        )
    return found
