"""Configure sphinx. ``scripts/site`` prepares what it reads, and runs it."""

from __future__ import annotations

from datetime import date

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
exclude_patterns = ["explanation/lint-truth/*"]

html_theme = "furo"
html_title = f"halfguard {release}"
html_theme_options = {"light_css_variables": {"code-font-size": "0.75rem"}}  # 100 columns fit
