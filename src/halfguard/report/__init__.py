"""What the instruments found, on a page: Markdown, and HTML that needs nothing else. No torch here.

An instrument's answer becomes a ``Page`` of blocks once; each way of writing it is a file of its own.
"""

from halfguard.report.autopsy import autopsy_page
from halfguard.report.html import to_html
from halfguard.report.junit import to_junit
from halfguard.report.markdown import to_markdown
from halfguard.report.run import run_page
from halfguard.report.story import Story
from halfguard.report.study import study_page

__all__ = [
    "Story",
    "autopsy_page",
    "run_page",
    "study_page",
    "to_html",
    "to_junit",
    "to_markdown",
]
