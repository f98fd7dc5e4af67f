"""Prepare a script of another project in a folder: copy, edit, plant its fault, make its data."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from textwrap import indent

from benchmarks.why_truth.real_data import MAKERS
from benchmarks.why_truth.real_data_second import SECOND_MAKERS
from benchmarks.why_truth.real_scripts import PLANT, Fault, RealScript


def prepare(script: RealScript, checkouts: Path, place: Path) -> Path:
    """Copy a script with the files beside it, with its fault and its data; return its folder."""
    source = _source(script, checkouts) / script.path
    if not source.is_file():
        raise FileNotFoundError(f"{source}: check out {script.source} at {script.version}.")
    folder = place / script.source.rpartition("/")[2] / Path(script.path).parent
    shutil.copytree(source.parent, folder, ignore=shutil.ignore_patterns(".git", "__pycache__"))
    for edit in script.setup:
        _edit(folder / edit.path, edit.anchor, edit.replacement, script)
    fault = script.fault
    _edit(folder / fault.path, fault.anchor, planted(fault), script)
    (MAKERS | SECOND_MAKERS)[script.data](folder)
    return folder


def planted(fault: Fault) -> str:
    """Return lines that do what the anchor did, unless PLANT is set."""
    first = fault.anchor.partition("\n")[0]
    margin = first[: len(first) - len(first.lstrip())]
    # Not `environ`: a script that has this word is never forked, which would take much longer.
    test = f'{margin}from os import getenv\n{margin}if getenv("{PLANT}"):\n'
    lines = test + indent(fault.lines, "    ")
    if fault.follows:
        return f"{fault.anchor}\n{lines}"
    return f"{lines}\n{margin}else:\n{indent(fault.anchor, '    ')}"


def _edit(path: Path, anchor: str, replacement: str, script: RealScript) -> None:
    text = f"\n{path.read_text('utf-8')}"
    if text.count(f"\n{anchor}\n") != 1:
        raise ValueError(f"{path}: {anchor!r} does not occur once. Take {script.version}.")
    path.write_text(text.replace(f"\n{anchor}\n", f"\n{replacement}\n")[1:], "utf-8")


def _source(script: RealScript, checkouts: Path) -> Path:
    """Return the checkout of a repository, named owner/name, or the folder of an installed package."""
    if "/" in script.source:
        return checkouts / script.source
    found = importlib.util.find_spec(script.source)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(f"Install {script.source}=={script.version}.")
    return Path(found.submodule_search_locations[0])
