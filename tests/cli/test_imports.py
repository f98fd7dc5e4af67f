"""What the program imports, and what it answers where a package is not installed: real processes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from halfguard.guard.presets.frameworks import framework_text
from tests.cli.command_result import CommandResult, Run, in_a_process
from tests.cli.test_lint import BAD
from tests.comparison.logs import write_fp32_and_fp16
from tests.support.programs import captured

ENTRY = f"{Path(__file__).parents[2]}/examples/overflowing.py:t5"
pytestmark = [pytest.mark.slow, pytest.mark.all_cells]
SPEC = "name: a\nentry: job.py:f\ncandidates: [fp16-mixed]\nmetric: {name: loss}\n"
COMPARE = ("compare", "fp32", "fp16", "--metric", "val_loss")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a folder with what the commands below read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "train.py").write_text(BAD)
    write_fp32_and_fp16(tmp_path, 0.0)


def without(package: str, *arguments: str) -> CommandResult:
    return in_a_process(*arguments, before=f"sys.modules[{package!r}] = None")


@pytest.mark.parametrize(
    ("missing", "arguments", "extra", "exit_code"),
    [
        ("torch", ["doctor"], "torch", 1),
        ("torch", ["doctor", ENTRY], "torch", 2),
        ("torch", ["plan", ENTRY], "torch", 2),
        ("torch", ["validate", "spec.yaml"], "validate", 2),
        ("scipy", ["validate", "spec.yaml"], "validate", 2),
        ("scipy", ["validate", "approve", ".", "--by", "Ada"], "validate", 2),
        ("scipy", COMPARE, "trackers", 2),
        ("numpy", COMPARE, "trackers", 2),
    ],
)
def test_what_is_not_installed_is_answered_with_the_pip_command(
    missing: str, arguments: list[str], extra: str, exit_code: int
) -> None:
    done = without(missing, *arguments)
    assert done.exit_code == exit_code, done.err
    command = f"pip install 'halfguard[{extra}]'"
    assert command in done.out + done.err
    assert "Traceback" not in done.err
    if extra != "torch":
        assert done.err.splitlines()[-1] == f"Run: {command}"


def test_a_card_can_be_asked_about_without_torch() -> None:
    done = without("torch", "doctor", "--gpu", "titan rtx")
    assert (done.exit_code, done.err) == (0, "")
    assert "Choose fp16-mixed." in done.out


@pytest.mark.usefixtures("seed")  # rich draws from Python's random generator
@pytest.mark.parametrize("arguments", [(), ("balanced",), ("fp16_safe", "--for", "lightning")])
def test_presets_are_text_and_need_no_torch(arguments: tuple[str, ...], halfguard: Run) -> None:
    done = without("torch", "presets", *arguments, "--json")
    assert (done.exit_code, done.err) == (0, "")
    assert done.out == halfguard("presets", *arguments, "--json").out


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (("rule", "HG119"), "torch numpy"),
        (("lint", "train.py"), "torch numpy yaml"),
        (COMPARE, "torch tensorboard wandb mlflow pandas lightning transformers"),
    ],
)
def test_no_large_package_is_imported(arguments: tuple[str, ...], heavy: str) -> None:
    shown = f"atexit.register(lambda: print({set(heavy.split())!r} & set(sys.modules)))"
    assert in_a_process(*arguments, before=shown).out.splitlines()[-1] == "set()"


def test_the_numbers_need_the_standard_library_only() -> None:
    watched = "{'torch', 'numpy', 'pydantic', 'rich', 'typer'} & set(sys.modules)"
    code = f"import sys, halfguard.formats; print({watched})"
    assert captured(sys.executable, "-c", code).stdout == "set()\n"


def test_the_program_itself_prints_a_file_that_can_be_used() -> None:
    program = Path(sys.executable).parent / "halfguard"
    done = captured(program, "presets", "fp16_safe", "--for", "accelerate")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == framework_text("fp16_safe", "accelerate")
