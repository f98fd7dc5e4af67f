"""What the instruments found, on a page: Markdown, and HTML that needs nothing else. No torch here.

An instrument's answer becomes a ``Page`` of blocks once; each way of writing it is a file of its own.
"""

from halfguard.report.autopsy import autopsy_page
from halfguard.report.html import to_html
from halfguard.report.markdown import to_markdown

__all__ = ["autopsy_page", "to_html", "to_markdown"]
