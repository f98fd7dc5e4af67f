"""Notebooks: cells as code, with lines that IPython understands and Python does not."""

from __future__ import annotations

import json

from halfguard.lint.notebook import read_notebook
from halfguard.lint.output import to_json
from halfguard.lint.run import FileResult
from tests.lint.helper import lint
from tests.support.cases import each


def notebook(*cells: str | list[str], kind: str = "code", language: str = "python") -> bytes:
    rows = [{"cell_type": kind, "source": cell} for cell in cells]
    return json.dumps({"cells": rows, "metadata": {"language_info": {"name": language}}}).encode()


def test_a_finding_has_its_cell_and_line() -> None:
    data = notebook(
        "%matplotlib inline\nimport torch",
        ["!pip install torch\n", "files = !ls\n", "x = torch.rand(3).half()\n"],
        "\ny = x.masked_fill(m, -1e9)",
    )
    (found,) = lint(data, "a.ipynb")
    assert found.code == "HG101"
    assert found.place == "a.ipynb:cell 3:2:22"
    assert found.snippet == "y = x.masked_fill(m, -1e9)"
    assert found.fix is None
    (row,) = json.loads(to_json([FileResult("a.ipynb", [found])]))
    assert (row["cell"], row["line"]) == (3, 2)


def test_what_is_not_python_is_left_alone() -> None:
    bad = "import torch\nx = torch.zeros(2).half().masked_fill(m, -1e9)"
    assert lint(notebook(bad), "a.ipynb") != []
    assert lint(notebook(bad, kind="markdown"), "a.ipynb") == []
    assert lint(notebook(bad, language="julia"), "a.ipynb") == []
    assert lint(notebook("%%bash\n" + bad), "a.ipynb") == []


@each(
    "data", [b"", b"{}", b"torch", b"[]", b'{"cells": 3}', b'{"cells": [1, {"cell_type": "code"}]}']
)
def test_odd_notebooks_are_survived(data: bytes) -> None:
    assert lint(data + b" torch" if not data.startswith(b"{") else data, "a.ipynb") == []


def test_magic_keeps_its_line_and_indentation() -> None:
    book = read_notebook(notebook("if x:\n    %time f()\n    f?\ny = a % b"))
    assert book.text == "if x:\n    pass\n    pass\ny = a % b\n"
