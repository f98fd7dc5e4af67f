"""The files of a job: its own, those that they import, and nothing that is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfguard.errors import UsageError
from halfguard.validation.runs.sources import digests_of, raise_if_changed
from halfguard.validation.study import run_study
from tests.validation.helper import JOBS, spec_of

FILES = {
    "train.py": "import json, torch\nimport model\nfrom package.deep import thing, other\n",
    "model.py": "def build():\n    from package import late\n",
    "package/__init__.py": "",
    "package/deep.py": "from . import beside\nfrom .inner.leaf import x\n",
    "package/beside.py": "import halfguard\n",
    "package/inner/leaf.py": "x = 1\nimport train\n",
    "package/late.py": "",
    "package/unused.py": "",
    "unused.py": "",
    "conf.yaml": "a: 1\n",
}
USED = {name for name in FILES if "unused" not in name and name.endswith(".py")}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize("entry", ["train.py:job", "train:job"])
def test_an_entry_brings_what_it_imports(project: Path, entry: str) -> None:
    assert set(digests_of(project, entry, None)) == USED


def test_a_module_of_a_package_is_found_from_the_specification(project: Path) -> None:
    found = set(digests_of(project, "package.late:job", None))
    assert found == {"package/late.py", "package/__init__.py"}


def test_a_module_of_a_package_run_as_a_command(project: Path) -> None:
    (project / "package/late.py").write_text("from package.beside import x\nimport model\n")
    found = set(digests_of(project, None, ["python", "-m", "package.late"]))
    assert found == {f"package/{name}.py" for name in ("late", "__init__", "beside")} | {"model.py"}


@pytest.mark.parametrize(
    "command",
    [
        ["python", "train.py", "--config", "conf.yaml"],
        ["python", "-m", "train", "--config=conf.yaml", "{precision}"],
    ],
)
def test_a_command_names_files_among_its_words(project: Path, command: list[str]) -> None:
    assert set(digests_of(project, None, command)) == USED | {"conf.yaml"}


def test_a_changed_neighbour_is_another_job(project: Path) -> None:
    before = digests_of(project, "train.py:job", None)
    (project / "package/inner/leaf.py").write_text("x = 2\n")
    after = digests_of(project, "train.py:job", None)
    assert {name for name in before if before[name] != after[name]} == {"package/inner/leaf.py"}


def test_what_is_no_python_is_left_to_the_run(project: Path) -> None:
    (project / "train.py").write_text("def job(:\n")
    assert set(digests_of(project, "train.py:job", None)) == {"train.py"}


def test_files_that_change_are_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    digests = digests_of(project, "train.py:job", None)
    raise_if_changed(digests)
    (project / "model.py").unlink()
    with pytest.raises(UsageError, match=r"model\.py has changed since"):
        raise_if_changed(digests)


@pytest.mark.slow
def test_a_job_that_is_edited_under_way_ends_the_study(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(JOBS.read_text())
    spec = spec_of("healthy", entry=f"{job}:healthy", seeds=3)

    def edit(progress: object) -> None:
        if getattr(progress, "last", None) is not None:
            job.write_text(job.read_text() + "# edited\n")

    with pytest.raises(UsageError, match=r"job\.py has changed since"):
        run_study(spec, tmp_path / "study", on_progress=edit)
    assert len(list((tmp_path / "study/runs").iterdir())) == 1
