"""GRIST, a public set of numerical bugs: lint and ``why`` on its PyTorch programs.

GRIST (github.com/Jacob-yen/GRIST) has 22 PyTorch programs. These 14 run without a download, and each has one
bug: the logarithm of a probability that rounds to 0. The bug is any line that takes that logarithm inside the
training loop. Lint reads the program as it was published, each alone: none of them mentions float16, so as a
project that is known to train in float32 it would not be asked about softmax. ``why`` runs the variant in
which GRIST's own search moves the input until the loss is NaN.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.casebook.others.asking import ask_why, lint_rules

# Program, and the lines of the bug in the commit c5f0cb6; without lines, the last two that take the logarithm
# of the hypothesis.
PROGRAMS = {
    "ID_23/ch5.3_softmax.py": (39,),
    "ID_26/0401_logistic_regression.py": (),
    "ID_27/0503_softmax_regression_cost.py": (),
    "ID_32/0504_softmax_regression.py": (47,),
    "ID_33/logistic_classification.py": (79, 80),
    "ID_34/softmax_classification.py": (90,),
    "ID_37/lab-05-1-logistic_regression.py": (32, 33),
    "ID_38/lab-09-1-xor.py": (32, 33),
    "ID_46/torch20_softmax.py": (33,),
    "ID_47/torch21_Softmax_Reg1.py": (40,),
    "ID_53/h02_20191644.py": (31,),
    "ID_54/h03_20191644.py": (28,),
    "ID_56/01_Logistic_Regression.py": (),
    "ID_57/03_softmax_cost.py": (30,),
}


@dataclass(frozen=True)
class Scored:
    """One program: the rules that lint reports at the bug, and what ``why`` names."""

    name: str
    lines: tuple[int, ...]
    lint: tuple[str, ...]
    line: bool  # why names a line of the bug
    said: str

    def __str__(self) -> str:
        lint = ", ".join(self.lint) or "nothing"
        return f"{self.name}: lint {lint}; why {'right' if self.line else 'WRONG'}: {self.said}"


def bug_lines(text: str, known: tuple[int, ...]) -> tuple[int, ...]:
    """Return the lines of the bug."""
    if known:
        return known
    pattern = re.compile(r"torch\.log\((1 - )?hypothesis")
    return tuple(n for n, line in enumerate(text.splitlines(), 1) if pattern.search(line))[-2:]


def score(checkout: Path) -> Iterator[Scored]:
    """Lint and run each program of a checkout."""
    for name, known in PROGRAMS.items():
        data = (checkout / "scripts" / "study_case" / name).read_bytes()
        text = data.decode()
        lines = bug_lines(text, known)
        bugs = {_bare(text.splitlines()[line - 1]) for line in lines}
        program = checkout / "scripts" / "study_case" / name
        answer = ask_why(program.with_stem(f"{program.stem}_grist"), [checkout])
        code = "" if answer.culprit is None else _bare(answer.culprit.code)
        said = f"step {answer.step}, `{code}`" if code else f"{answer.outcome} {answer.error}"
        yield Scored(name, lines, lint_rules(name, data, lines), code in bugs, said)


def _bare(line: str) -> str:
    return line.partition("#")[0].strip()


def main(checkout: Path) -> int:
    """Print the score of each program, and the shares."""
    scored = []
    for one in score(checkout):
        scored.append(one)
        print(one, flush=True)
    linted, named = sum(bool(one.lint) for one in scored), sum(one.line for one in scored)
    print(f"lint: {linted} of {len(scored)}; why names the line: {named} of {len(scored)}")
    return 0
