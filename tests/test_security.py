"""SECURITY.md is true of all code: nothing is unpickled, and no expression from a file is evaluated."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from halfguard.errors import ConfigError
from halfguard.records.config_file import read_yaml
from tests.support.cases import each
from tests.support.docs import ROOT

SOURCE = ROOT / "src" / "halfguard"
FILES = sorted(SOURCE.rglob("*.py"))
PICKLES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
SAFE_LOADERS = {"_PlainLoader", "_LOADER"}  # both are yaml's safe loader: see the test below
# Code that is the user's own, named by the user.
RUNS_CODE = {
    "workload/job.py": {"exec_module", "import_module"},
    "investigation/held_step.py": {"exec"},
    "investigation/one_pass.py": {"exec", "run_path", "run_module"},
}


def problems(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield what could run code from a file: line and name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = {name.name.partition(".")[0] for name in node.names} & PICKLES
        elif isinstance(node, ast.ImportFrom):
            found = {(node.module or "").partition(".")[0]} & PICKLES
        elif isinstance(node, ast.Call):
            found = set(_call_problems(node))
        else:
            continue
        yield from ((node.lineno, name) for name in found)


def _call_problems(call: ast.Call) -> Iterator[str]:
    name = ast.unparse(call.func)
    if name in {"eval", "exec", "builtins.eval", "builtins.exec"}:
        yield name
    if name == "torch.load":
        given = {word.arg: ast.unparse(word.value) for word in call.keywords}
        if given.get("weights_only") != "True":
            yield name
    if name in {"yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all"}:
        loader = [*call.args[1:2], *(w.value for w in call.keywords if w.arg == "Loader")]
        if [ast.unparse(one) for one in loader if ast.unparse(one) in SAFE_LOADERS] == []:
            yield name
    if name.rpartition(".")[2] in {"load", "read_pickle"} and name.startswith(
        ("np.", "numpy.", "pd.")
    ):
        yield name
    if name.rpartition(".")[2] in {"run_path", "run_module", "exec_module"}:
        yield name.rpartition(".")[2]


@each("path", FILES)
def test_nothing_in_a_file_can_run_code(path: Path) -> None:
    allowed = RUNS_CODE.get(path.relative_to(SOURCE).as_posix(), set())
    found = [
        (line, name)
        for line, name in problems(ast.parse(path.read_text("utf-8")))
        if name not in allowed
    ]
    assert found == []


@each(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "yaml.load(text, yaml.Loader)",
        "yaml.unsafe_load(text)",
        "numpy.load(path)",
        "eval(text)",
        "runpy.run_path(path)",
    ],
)
def test_the_check_finds_what_it_looks_for(code: str) -> None:
    assert list(problems(ast.parse(code)))


def test_the_loaders_with_names_of_their_own_are_safe() -> None:
    plain = (SOURCE / "comparison/tracker_files.py").read_text("utf-8")
    assert "class _PlainLoader(yaml.SafeLoader):" in plain
    table = (SOURCE / "hardware/lookup.py").read_text("utf-8")
    assert '_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)' in table


def test_a_configuration_with_a_python_object_is_refused(tmp_path: Path) -> None:
    trap = tmp_path / "guard.yaml"
    trap.write_text(f"plan: !!python/object/apply:pathlib.Path.touch [{tmp_path / 'ran'}]\n")
    with pytest.raises(ConfigError, match="not YAML"):
        read_yaml(trap)
    assert not (tmp_path / "ran").exists()


def test_the_page_names_what_it_promises() -> None:
    page = (ROOT / "SECURITY.md").read_text("utf-8")
    for name in (
        "hg.doctor",
        "hg.save_checkpoint",
        "hg.BestKeeper",
        "weights_only=True",
        "safetensors",
    ):
        assert name in page
    collectives = (SOURCE / "dist/collectives.py").read_text("utf-8")
    pickled = set(re.findall(r"dist\.(\w*object\w*)\(", collectives))
    assert pickled == {"all_gather_object", "broadcast_object_list"}
    assert all(name in page for name in pickled)
