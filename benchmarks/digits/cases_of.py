"""Cases of lost digits: a folder of programs, each with ``make()`` and a line marked ``# guilty``.

``make()`` returns model, ``loss_fn(model, batch)`` and batch. ``PRECISION`` is "float16", unless the program
sets it to "bfloat16".
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import halfguard as hg
from halfguard.records.rounding import RoundingReport

CASES = Path(__file__).parent / "cases"
SCRIPTS = Path(__file__).parent / "scripts"


@dataclass(frozen=True)
class Case:
    """A program that loses digits in one line."""

    file: Path

    @property
    def name(self) -> str:
        return self.file.stem

    @property
    def guilty(self) -> int:
        """The number of the line that is marked."""
        lines = self.file.read_text("utf-8").splitlines()
        marked = [
            number for number, text in enumerate(lines, 1) if text.rstrip().endswith("# guilty")
        ]
        if len(marked) != 1:
            raise ValueError(f"{self.file} marks {len(marked)} lines as guilty")
        return marked[0]

    def report(self) -> RoundingReport:
        spec = importlib.util.spec_from_file_location(self.name, self.file)
        if spec is None or spec.loader is None:
            raise ValueError(f"{self.file} is no program")
        module: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        model, loss_fn, batch = module.make()
        precision = getattr(module, "PRECISION", "float16")
        return hg.rounding(model, loss_fn, batch, precision=precision)


def cases(folder: Path = CASES) -> Iterator[Case]:
    """Yield the cases of a folder, by name."""
    for file in sorted(folder.glob("*.py")):
        yield Case(file)
