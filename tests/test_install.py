"""A stranger's first minutes: a fresh environment without torch, then the README's install with torch."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

import halfguard
from tests.support.docs import ROOT, snippets

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source archive and the wheel, as the release workflow makes them."""
    pytest.importorskip("build")
    out = tmp_path_factory.mktemp("dist")
    done = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (wheel,) = built.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def fresh(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that holds halfguard and its base dependencies."""
    home = tmp_path_factory.mktemp("fresh")
    venv.create(home, symlinks=True)
    install(home, str(wheel))
    return home / "bin"


def install(home: Path, *requirements: str) -> None:
    """Install into an environment with the pip of this one, which starts faster than a new one is made."""
    pip = ["-m", "pip", "--python", str(home / "bin/python"), "install", "--quiet"]
    done = run(sys.executable, *pip, "--disable-pip-version-check", *requirements)
    assert done.returncode == 0, done.stderr


def _environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "VIRTUAL_ENV"}}


def run(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        env=_environment() | {"COLUMNS": "100"},
        check=False,
    )


def test_torch_is_not_there(fresh: Path) -> None:
    assert run(fresh / "python", "-c", "import torch").returncode == 1


@pytest.mark.parametrize(
    ("arguments", "expected", "modules"),
    [
        (("rule", "HG119"), "1e-8", 400),
        (("--help",), "presets", 600),
        (("--version",), "halfguard", 200),
    ],
)
def test_the_program_imports_little_before_it_answers(
    fresh: Path, arguments: tuple[str, ...], expected: str, modules: int
) -> None:
    """Count modules instead of seconds: imports take nearly all of the time, which depends on the machine."""
    result = run(fresh / "python", "-X", "importtime", fresh / "halfguard", *arguments)
    assert result.returncode == 0, result.stderr
    assert expected in result.stdout
    imported = result.stderr.count("import time:")
    print(f"halfguard {' '.join(arguments)}: {imported} modules", file=sys.stderr)
    assert imported < modules


def test_a_card_is_answered_for_without_torch(fresh: Path) -> None:
    result = run(fresh / "halfguard", "doctor", "--gpu", "TITAN RTX")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("TITAN RTX: NVIDIA Turing")
    assert "Choose fp16-mixed." in result.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "ultra_conservative"),
        (("fp16_safe",), "accumulate: 2"),
        (("fp16_safe", "--for", "transformers"), "TrainingArguments"),
    ],
)
def test_presets_are_printed_without_torch(
    fresh: Path, arguments: tuple[str, ...], expected: str
) -> None:
    result = run(fresh / "halfguard", "presets", *arguments)
    assert (result.returncode, result.stderr) == (0, "")
    assert expected in result.stdout


def test_this_machine_without_torch_is_told_what_is_missing(fresh: Path) -> None:
    result = run(fresh / "halfguard", "doctor")
    assert result.returncode == 1
    assert "torch is not installed here." in result.stdout
    assert "pip install 'halfguard[torch]'" in result.stdout


def test_a_torch_name_says_which_pip_command_to_run(fresh: Path) -> None:
    result = run(fresh / "python", "-c", "import halfguard; halfguard.ops")
    assert result.returncode == 1
    assert "MissingExtraError: halfguard.ops needs the optional dependency 'torch'" in result.stderr
    assert "Run: pip install 'halfguard[torch]'" in result.stderr


def test_the_source_archive_has_every_file(built: Path) -> None:
    listed = run("git", "-C", ROOT, "ls-files")
    if listed.returncode != 0:
        pytest.skip("this is no clone, so nobody knows which files there are")
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    missing = {name for name in listed.stdout.splitlines() if (ROOT / name).exists()} - names
    assert not missing


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    package = ROOT / "src" / "halfguard"
    files = {p for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert names == {f"halfguard/{p.relative_to(package).as_posix()}" for p in files}
    assert "halfguard/py.typed" in names


def test_the_index_would_accept_both_and_show_the_readme(built: Path) -> None:
    pytest.importorskip("twine")
    done = run(sys.executable, "-m", "twine", "check", "--strict", *sorted(built.iterdir()))
    assert (done.returncode, done.stdout.count("PASSED")) == (0, 2), done.stdout + done.stderr


@pytest.fixture(scope="module")
def from_wheel(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a new environment with the wheel; its dependencies are those of this one."""
    home = tmp_path_factory.mktemp("wheel")
    venv.create(home, symlinks=True)
    install(home, "--no-deps", str(wheel))
    (packages,) = home.glob("lib/python*/site-packages")
    # Paths only: the files that make this checkout importable are not read from there.
    here = [path for path in sys.path if Path(path).name == "site-packages"]
    (packages / "dependencies.pth").write_text("\n".join(here) + "\n")
    return home / "bin"


def test_the_wheel_runs_what_the_pages_show(from_wheel: Path, tmp_path: Path) -> None:
    where = run(
        from_wheel / "python", "-c", "import halfguard; print(halfguard.__file__)", cwd=tmp_path
    )
    assert Path(where.stdout.strip()).is_relative_to(from_wheel.parent), where.stdout + where.stderr
    version = run(from_wheel / "halfguard", "--version", cwd=tmp_path)
    assert version.stdout == f"halfguard {halfguard.__version__}\n"
    linted = run(from_wheel / "halfguard", "lint", ROOT / "examples/nan_loss.py", cwd=tmp_path)
    assert (linted.returncode, linted.stderr) == (1, "")
    assert "HG119" in linted.stdout
    table = run(from_wheel / "python", ROOT / "examples/quickstart.py", cwd=tmp_path)
    page = ROOT / "docs/tutorial/first-guard.md"
    (shown,) = (s.output for s in snippets(page) if "quickstart.py" in s.source)
    assert table.stdout.split() == shown.split(), table.stderr


JOB = """
import torch
import halfguard as hg

def loss_fn(model, batch):
    return (model(batch) ** 2).float().mean()  # the square is taken in half

def job(seed):
    torch.manual_seed(seed)
    model = torch.nn.Linear(8, 1)
    batches = [torch.randn(16, 8), 1000 * torch.randn(16, 8)]
    return hg.Workload(model, loss_fn, batches, torch.optim.SGD(model.parameters(), lr=1e-3))

if __name__ == "__main__":
    work = job(0)
    config = {"scale": {"init": 1024.0}}
    guard = hg.Guard(work.model, work.optimizer, config, run_dir="run", entry="train.py:job")
    print(*(guard.step(work.loss, batch).action for batch in work.batches))
"""


def readme_extras() -> str:
    """Return the extras of the README's command with the extra ``torch``, in brackets."""
    commands = [shlex.split(s.source) for s in snippets(ROOT / "README.md")]
    (requirement,) = [c[2] for c in commands if c[:2] == ["pip", "install"] and "torch" in c[2]]
    # A name would be looked up in the package index; only what is in brackets counts here.
    extras = re.fullmatch(r"(?:\.|halfguard)(\[[\w,]+\])", requirement)
    assert extras is not None, requirement
    return extras[1]


def link_torch(home: Path) -> None:
    """Let pip find this environment's torch as installed, but nothing that torch depends on."""
    (packages,) = home.glob("lib/python*/site-packages")
    torch = distribution("torch")
    for name in {file.parts[0] for file in torch.files or ()} - {".."}:
        (packages / name).symlink_to(str(torch.locate_file(name)))


def test_the_readmes_install_keeps_an_incident_and_replays_it(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", symlinks=True)
    binaries = tmp_path / "venv/bin"
    link_torch(tmp_path / "venv")  # unpacking it takes half a minute, and pip would pick a build
    install(tmp_path / "venv", "--no-compile", f"{wheel}{readme_extras()}")
    (tmp_path / "train.py").write_text(JOB)
    trained = run(binaries / "python", "train.py", cwd=tmp_path)
    assert (trained.returncode, trained.stdout) == (0, "apply skip\n"), trained.stderr
    (incident,) = (tmp_path / "run/incidents").iterdir()
    replayed = run(binaries / "halfguard", "replay", incident, cwd=tmp_path)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "pow returned the first NaN or Inf" in replayed.stdout
