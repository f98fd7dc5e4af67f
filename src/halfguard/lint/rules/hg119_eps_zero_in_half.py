"""An eps is added to a float16 tensor, in which it is zero."""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.numeric_checks import SMALL_CONSTANTS, find_small_terms
from halfguard.lint.python_file import PythonFile

META = Meta(
    contains=("half(", "float16"),
    pattern=SMALL_CONSTANTS,
    needs_half=True,
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find constants that are zero in the dtype of the tensor they are added to."""
    for term in find_small_terms(file):
        if file.is_proven_half(term.rest):
            eps = file.text(term.eps)
            yield match_at(term.eps, f"{eps} is 0 in float16: it has no effect here.")
