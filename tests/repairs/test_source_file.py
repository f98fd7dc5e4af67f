"""Edits of a source file: the right statement, and none where a line does not tell which one is meant."""

from __future__ import annotations

import ast
from pathlib import Path

from halfguard.repairs.source_file import SourceFile
from halfguard.repairs.stable_composition import patch_line
from tests.support.cases import each


def read(folder: Path, text: str) -> SourceFile:
    path = folder / "train.py"
    path.write_text(text)
    file = SourceFile.read(str(path))
    assert file is not None
    return file


def after(file: SourceFile) -> list[str]:
    """Return the lines that a patch adds."""
    return [line[1:] for line in file.patch().splitlines()[2:] if line.startswith("+")]


@each(
    ("text", "line", "wanted"),
    [
        ("a = f(\n    x,\n)\n", 2, "Assign"),
        ("a = f(x); b = g(a)\n", 1, None),
        ("if x: y = f(x)\n", 1, None),
        ("if x:\n    y = f(x)\nelse: z = 1\n", 3, "Assign"),
        ("if f(\n    x\n):\n    y = 1\n", 2, "If"),
        ("if f(x):\n    y = 1\n", 2, "Assign"),
        ("@f(x)\ndef g(y): return y\n", 1, "FunctionDef"),
        ("@f(x)\ndef g(y): return y\n", 2, None),
        ("def g(\n    y=f(1),\n):\n    return y\n", 2, "FunctionDef"),
        ("try:\n    a = 1\nexcept E: b = 2\n", 3, None),
        ("match x:\n    case 1: y = 2\n", 2, None),
        ("class A: x = 1\n", 1, None),
        ("f = lambda x: x.exp()\n", 1, "Assign"),
    ],
)
def test_the_statement_of_a_line(tmp_path: Path, text: str, line: int, wanted: str | None) -> None:
    found = read(tmp_path, text).statement_at(line)
    assert (None if found is None else type(found).__name__) == wanted


def test_lines_inside_a_string_are_not_indented(tmp_path: Path) -> None:
    text = 'def f(x):\n    y = g(\n        x, """one\n  two\n""", f"""{x}\nthree""",\n    )\n'
    file = read(tmp_path, text)
    statement = file.statement_at(2)
    assert statement is not None
    file.indent(statement, "with block:")
    new = text.encode()
    for (start, end), edit in sorted(file.edits.items(), reverse=True):
        new = new[:start] + edit + new[end:]
    (block,) = (n for n in ast.walk(ast.parse(new)) if isinstance(n, ast.With))
    assert ast.dump(block.body[0]) == ast.dump(statement)
    assert file.patch()


def test_a_statement_that_shares_its_line_is_not_put_into_a_block(tmp_path: Path) -> None:
    file = read(tmp_path, "a = f(x); b = g(a)\n")
    file.indent(file.tree.body[0], "with block:")
    assert not file.patch()


def test_a_name_that_is_assigned_on_the_same_line_is_not_followed(tmp_path: Path) -> None:
    text = "def f(x, z):\n    p = torch.sigmoid(z)\n    p = torch.sigmoid(x); y = torch.log(p)\n"
    file = read(tmp_path, text)
    assert not patch_line(file, 3)
    file = read(tmp_path, text.replace("p = torch.sigmoid(x); ", ""))
    assert patch_line(file, 3)
    assert after(file) == ["    y = torch.nn.functional.logsigmoid(z.float())"]


@each(
    ("text", "line", "follows"),
    [
        ("p = torch.sigmoid(x)\ny = torch.log(p)\n", 2, True),
        ("for x in d:\n    p = torch.sigmoid(x)\n    y = torch.log(p)\n", 3, True),
        ("def f():\n    p = 1\np = torch.sigmoid(x)\ny = torch.log(p)\n", 4, True),
        ("def f():\n    global p\n    p = 1\np = torch.sigmoid(x)\ny = torch.log(p)\n", 5, False),
        ("p = torch.sigmoid(x)\nx = 1\ny = torch.log(p)\n", 3, False),
        ("p = torch.sigmoid(x)\nfor i in d:\n    y = torch.log(p)\n    x = i\n", 3, False),
        ("p = torch.sigmoid(x)\nclass A:\n    def f(self):\n        y = torch.log(p)\n", 4, False),
    ],
)
def test_names_of_a_module_are_followed_too(
    tmp_path: Path, text: str, line: int, follows: bool
) -> None:
    assert patch_line(read(tmp_path, text), line) is follows


def test_nothing_is_taken_out_of_a_lambda(tmp_path: Path) -> None:
    file = read(tmp_path, "def f():\n    g = lambda x: log(sigmoid(h(x)))\n")
    call = next(n for n in ast.walk(file.tree) if isinstance(n, ast.Call) and n.args[0].lineno)
    file.hoist(call)
    assert not file.patch()
