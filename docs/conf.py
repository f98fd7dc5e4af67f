"""Configure sphinx. ``scripts/site`` prepares what it reads, and runs it."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

from sphinx.application import Sphinx

import halfguard

project = "halfguard"
author = "The halfguard authors"
copyright = f"{date.today().year}, {author}"  # noqa: A001 - sphinx's name
version = release = halfguard.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
default_role = "code"

html_theme = "furo"
html_title = f"halfguard {release}"
html_theme_options = {"light_css_variables": {"code-font-size": "0.75rem"}}  # 100 columns fit
html_show_sourcelink = html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]

# What the theme leaves out for people who read with a screen reader or the keyboard.
ADDED = {
    '<p class="caption" role="heading"': ' aria-level="2"',
    '<aside class="sidebar-drawer"': ' aria-label="All pages"',
    '<aside class="toc-drawer': ' aria-label="On this page"',
    '<div class="table-wrapper': ' tabindex="0"',  # it scrolls
    '<div class="highlight"><pre': ' tabindex="0"',
}


def setup(app: Sphinx) -> None:
    """Complete every page when all are written."""
    app.connect("build-finished", complete_pages)


def complete_pages(app: Sphinx, exception: Exception | None) -> None:
    """Add the attributes of ``ADDED`` to each page; an element is known by its beginning."""
    pages = [] if exception else sorted(Path(app.outdir).rglob("*.html"))
    for page in pages:
        text = page.read_text("utf-8")
        for start, attribute in ADDED.items():
            name, rest = re.fullmatch(r"(.*<\w+)(.*)", start).groups()
            text = text.replace(start, f"{name}{attribute}{rest}")
        page.write_text(text, "utf-8")
