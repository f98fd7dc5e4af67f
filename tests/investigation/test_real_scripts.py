"""The list of other projects' scripts is well-formed; runs need checkouts (``scripts/bench why_real``)."""

from __future__ import annotations

import shlex
from pathlib import Path
from textwrap import dedent

import pytest
from benchmarks.why_truth.planting import planted, prepare
from benchmarks.why_truth.real_data import MAKERS
from benchmarks.why_truth.real_data_second import SECOND_MAKERS
from benchmarks.why_truth.real_scripts import PLANT, REAL_SCRIPTS, RealScript
from benchmarks.why_truth.real_scripts_second import SECOND_SET

ALL = REAL_SCRIPTS + SECOND_SET
each = pytest.mark.parametrize("script", ALL, ids=lambda one: one.name)


def test_names_and_faults_are_unique() -> None:
    assert len({one.name for one in ALL}) == len(ALL)
    assert len({one.line for one in ALL}) == len(ALL)
    assert len({(one.source, one.path) for one in ALL}) == len(ALL)
    assert not MAKERS.keys() & SECOND_MAKERS.keys()


@each
def test_a_description_is_whole(script: RealScript) -> None:
    assert script.data in MAKERS or script.data in SECOND_MAKERS
    assert shlex.split(script.arguments) is not None
    assert script.line in script.fault.lines
    assert len(script.version) == 40 or script.source.isidentifier()


@each
def test_a_plant_compiles(script: RealScript) -> None:
    compile(f"def f():\n    pass\n{dedent(planted(script.fault))}\n", script.name, "exec")


def test_a_plant_changes_only_a_run_with_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = next(one for one in REAL_SCRIPTS if one.name.startswith("nanogpt"))
    home = tmp_path / "checkouts" / script.source
    home.mkdir(parents=True)
    for path in {edit.path for edit in script.setup}:
        (home / path).write_text("".join(f"{edit.anchor}\n" for edit in script.setup), "utf-8")
    (home / "model.py").write_text(f"if True:\n  if True:\n{script.fault.anchor}\n", "utf-8")
    folder = prepare(script, tmp_path / "checkouts", tmp_path / "place")
    code = compile((folder / "model.py").read_text("utf-8"), "model.py", "exec")

    class Head:
        def lm_head(self, x: float) -> float:
            return x

    for value, expected in (("1", 1e5), ("", 1.0)):
        monkeypatch.setenv(PLANT, value)
        names = {"self": Head(), "x": 1.0}
        exec(code, names)
        assert names["logits"] == pytest.approx(expected)


def test_a_missing_anchor_is_an_error(tmp_path: Path) -> None:
    script = next(one for one in REAL_SCRIPTS if one.name.startswith("vae"))
    path = tmp_path / script.source / script.path
    path.parent.mkdir(parents=True)
    path.write_text("print('another version')\n", "utf-8")
    with pytest.raises(ValueError, match=r"does not occur once. Take 77f55b"):
        prepare(script, tmp_path, tmp_path / "place")
