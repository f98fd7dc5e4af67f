"""Pages of results, as Markdown and as self-contained HTML. Nothing here imports torch.

A result becomes a ``Page`` of blocks. Each output format has a file of its own.
"""

from halfguard.report.autopsy import autopsy_page
from halfguard.report.html import to_html
from halfguard.report.markdown import to_markdown
from halfguard.report.mismatch import mismatch_page
from halfguard.report.probe import probe_page
from halfguard.report.rounding import rounding_page
from halfguard.report.run import run_page
from halfguard.report.script_answer import script_answer_page
from halfguard.report.study import study_page
from halfguard.report.timeline import RunReport

__all__ = [
    "RunReport",
    "autopsy_page",
    "mismatch_page",
    "probe_page",
    "rounding_page",
    "run_page",
    "script_answer_page",
    "study_page",
    "to_html",
    "to_markdown",
]
