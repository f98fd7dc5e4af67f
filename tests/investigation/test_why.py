"""``halfguard why`` on scripts as users write them: the line, the verdict on FP32, the cure."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from halfguard.investigation.proof import PROOF
from halfguard.records.script_answer import ScriptAnswer
from tests.investigation.command import (
    SCRIPTS,
    answer_of,
    ask,
    ask_about,
    culprit_line,
    environment,
    python_for,
    why,
)
from tests.support.forks import forked_path, forked_python
from tests.support.programs import TWO_RANKS, captured

pytestmark = pytest.mark.slow

# script, its arguments, the step of the event, the operation, and whether FP32 is fine
FAILING = [
    ("plain_loop.py", (), 7, "exp", "fine"),
    ("log_of_sigmoid.py", (), 4, "log", "fails"),
    ("skips_bad_losses.py", (), 3, "div", "fails"),
    ("unseeded.py", (), 17, "div", "fails"),
    ("compiled.py", (), 4, "log", "fails"),
    ("checkpointed.py", (), 3, "sqrt", "fails"),
    ("gradient_penalty.py", ("--steps", "6"), 6, "sqrt", "fails"),
    ("notebook_export.py", (), 0, "addcdiv", "fine"),
    ("scale_collapse.py", (), 11, "to", "fails"),
    ("accelerate_loop.py", (), 9, "div", "fails"),
    ("lightning_module.py", (), 6, "exp", "fine"),
    # A step breaks parameters that only a later one uses.
    ("broken_head.py", (), 5, "mul", "fine"),
    ("rare_rows.py", (), 0, "addcdiv", "fails"),
    ("normalized_rows.py", (), 5, "div", "fails"),
    # A parameter was bad from the start, and is used by nothing.
    ("born_bad.py", (), 6, "div", "fails"),
]


HALF_ADAM = """import torch

def run():
    net = torch.nn.Linear(4, 1).half()
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(4):
        loss = net(torch.ones(2, 4).half()).float().mean() * 1e-4
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
REAL = ("plain_loop.py", "accelerate_loop.py", "lightning_module.py")  # in processes of a user


@pytest.mark.parametrize(("name", "arguments", "step", "op", "in_fp32"), FAILING)
def test_the_line_and_the_verdict(
    tmp_path: Path, name: str, arguments: tuple[str, ...], step: int, op: str, in_fp32: str
) -> None:
    answer = ask(name, tmp_path, *arguments, real=name in REAL)
    assert answer.outcome == "non-finite value"
    assert (answer.culprit.file, answer.culprit.line) == (name, culprit_line(name))
    assert (answer.step, answer.culprit.op, answer.in_fp32) == (step, op, in_fp32)
    assert answer.cure is not None or answer.advice
    if "skipped" in answer.loss_scale:  # a backward pass is a step, or one that was skipped
        assert answer.loss_scale.endswith(f"; {answer.backward - answer.steps} steps skipped")


def test_a_loop_without_an_optimizer_and_data_from_beside_the_folder(tmp_path: Path) -> None:
    rows = [[float(row * 7 % 5 + column) for column in range(3)] for row in range(24)]
    rows[14] = rows[13]
    (tmp_path / "data").mkdir()
    numbers = [str(number) for row in rows for number in row]
    (tmp_path / "data" / "rows.txt").write_text("\n".join(numbers), "utf-8")
    (tmp_path / "code").mkdir()
    answer = ask("no_optimizer.py", tmp_path / "code")
    assert answer.culprit.line == culprit_line("no_optimizer.py")
    assert (answer.step, answer.culprit.op, answer.in_fp32) == (3, "sqrt", "fails")
    assert answer.cure.patch.startswith("--- ")


def test_parameters_that_are_used_later_are_told_at_the_step_that_broke_them(
    tmp_path: Path,
) -> None:
    answer = ask("broken_head.py", tmp_path)
    assert (
        answer.event
        == "parameters were NaN or Inf after SGD.step(); this was noticed 9 steps later"
    )
    assert "the patched script" in answer.cure.trial


@pytest.mark.parametrize("place", ["src/train.py", "../src/train.py"])
def test_a_script_that_changes_its_folder_gets_trials_of_lines(tmp_path: Path, place: str) -> None:
    for name in ("src", "runs"):
        (tmp_path / name).mkdir()
    shutil.copy(SCRIPTS / "changes_folder.py", tmp_path / "src" / "train.py")
    cwd = tmp_path / "runs" if place.startswith("..") else tmp_path
    answer = answer_of(place, cwd=cwd)
    assert answer.culprit.place == f"{place}:{culprit_line('changes_folder.py')}"
    assert answer.culprit.code.endswith("# culprit")
    assert answer.cure.trial == f"this line in FP32; {PROOF}"
    told = any(f"relative to {tmp_path}/src" in note for note in answer.notes)
    assert told is place.startswith("..")
    (tmp_path / "change.diff").write_text(answer.cure.patch + "\n")
    base = tmp_path / "src" if told else tmp_path
    subprocess.run(["patch", "-p1", "-i", str(tmp_path / "change.diff")], cwd=base, check=True)
    assert not (cwd / "logs").exists()


def test_the_patch_of_a_logarithm_can_be_applied_and_the_script_trains_on(tmp_path: Path) -> None:
    answer = ask("log_of_sigmoid.py", tmp_path)
    (tmp_path / "change.diff").write_text(answer.cure.patch + "\n")
    subprocess.run(["patch", "-p1", "-i", "change.diff"], cwd=tmp_path, check=True)
    done = why("--json", "log_of_sigmoid.py", cwd=tmp_path)
    assert ScriptAnswer.from_json(done.stdout).outcome == "nothing bad"
    assert done.returncode == 0


def test_a_trainer_of_transformers(tmp_path: Path) -> None:
    answer = ask("transformers_trainer.py", tmp_path, real=True)
    line = culprit_line("transformers_trainer.py")
    assert (answer.culprit.op, answer.culprit.line, answer.in_fp32) == ("log", line, "fails")
    assert not (tmp_path / "out").exists()


def test_two_ranks_of_torchrun(tmp_path: Path) -> None:
    shutil.copy(SCRIPTS / "ddp.py", tmp_path)
    torchrun = [str(forked_path() / "torchrun"), *TWO_RANKS]
    command = (*torchrun, "halfguard.why", "--json", "ddp.py")
    done = captured(*command, cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr
    answer = ScriptAnswer.from_json(done.stdout)
    assert answer.culprit is not None
    assert (answer.rank, answer.step, answer.in_fp32) == (1, 5, "fails")
    assert answer.culprit.line == culprit_line("ddp.py")
    assert [path.name for path in tmp_path.iterdir()] == ["ddp.py"]


def test_autocast_of_a_missing_device_is_told_and_can_be_emulated(tmp_path: Path) -> None:
    answer = ask("cuda_autocast.py", tmp_path)
    assert any("--emulate" in note for note in answer.notes)
    assert answer.precision == "FP32"
    emulated = ask("cuda_autocast.py", tmp_path, options=("--emulate",))
    assert (emulated.step, emulated.culprit.dtype) == (5, "float16")
    assert emulated.precision == "FP16 autocast"
    assert not any("had no effect" in note for note in emulated.notes)
    assert emulated.in_fp32 == "fails"  # at step 7: it diverges in any precision
    assert emulated.culprit.line == culprit_line("cuda_autocast.py")


def test_a_step_without_the_scaler_is_named(tmp_path: Path) -> None:
    answer = ask("raw_step.py", tmp_path)
    assert answer.outcome == "non-finite value"
    assert answer.in_fp32 == "fine"
    assert "opt.step(). Step it only with scaler.step(optimizer)" in answer.cure.sentence
    assert "+    scaler.step(opt)" in answer.cure.patch


@pytest.mark.slow
def test_missing_targets_that_are_only_printed_are_no_failure(tmp_path: Path) -> None:
    answer = ask("masked_targets.py", tmp_path)
    assert answer.outcome == "nothing bad"
    assert any("no failure of training: y held this value" in note for note in answer.notes)


def test_calibration_of_a_loss_scale_is_no_event(tmp_path: Path) -> None:
    answer = ask("healthy_scaler.py", tmp_path)
    assert answer.outcome == "nothing bad"
    assert answer.backward == 30
    assert "7 steps skipped" in answer.loss_scale
    assert "doublings below the limit of 65504" in answer.headroom


def test_it_stops_after_the_steps_that_were_asked_for(tmp_path: Path) -> None:
    answer = ask("plain_loop.py", tmp_path, options=("--steps", "3"))
    assert (answer.outcome, answer.steps) == ("nothing bad", 3)


def _write(*options: str) -> dict[str, list[object]]:
    command = (forked_python(), "-m", "tests.investigation.writing_scripts", *options)
    done = captured(*command, env=environment())
    assert done.stdout, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_scripts_that_write_leave_the_folder_as_it_was() -> None:
    found = _write("--one-pass")
    assert len(found) == 24
    assert found == {name: ["event", []] for name in found}


def test_all_passes_of_scripts_that_write_leave_the_folder_as_it_was() -> None:
    found = _write(
        "checkpoint", "large in place", "removes a folder", "process"
    )  # all: scripts/soak
    assert len(found) == 5
    assert found == {name: ["proven", []] for name in found}


def test_in_place_runs_in_the_folder_itself(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("open('log.txt', 'w').close()\n")
    answer_of("--in-place", "train.py", cwd=tmp_path)
    assert (tmp_path / "log.txt").exists()


def test_a_write_outside_of_the_folder_is_told(tmp_path: Path) -> None:
    work, other = tmp_path / "work", tmp_path / "other"
    work.mkdir()
    other.mkdir()
    text = (
        (SCRIPTS / "unseeded.py").read_text().replace("import random\n", "import random, pathlib\n")
    )
    text += f"\npathlib.Path({str(work)!r}, 'absolute.txt').write_text('x')\n"
    (work / "train.py").write_text(text.replace("samples[order[17]] = 0", ""))
    done = why("--json", "train.py", cwd=work)
    assert f"wrote {work}/absolute.txt; this was not isolated" in done.stdout


def test_a_module_with_arguments(tmp_path: Path) -> None:
    package = tmp_path / "job"
    package.mkdir()
    (package / "__init__.py").touch()
    shutil.copy(SCRIPTS / "gradient_penalty.py", package / "train.py")
    command = [forked_python(), "-m", "halfguard.why", "-m", "job.train", "--steps", "6"]
    done = captured(*command, cwd=tmp_path, env=environment())
    assert done.returncode == 1, done.stderr
    line = culprit_line("gradient_penalty.py")
    assert f"job/train.py:{line}" in done.stdout.replace("\n", "")


def test_emulation_that_changes_nothing_is_reported(tmp_path: Path) -> None:
    """Lightning replaces 16-mixed by BF16 on a CPU; a script without regions of CUDA is the same."""
    answer = ask("cpu_bf16.py", tmp_path, options=("--emulate",))
    assert (answer.outcome, answer.precision) == ("nothing bad", "BF16 autocast")
    assert any("--emulate had no effect" in note for note in answer.notes)


def test_a_crash_without_a_bad_number_shows_the_last_lines(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('begun')\nraise KeyError('labels')\n")
    done = why("train.py", cwd=tmp_path, real=True)
    assert done.returncode == 1
    assert "without NaN or Inf" in done.stdout
    assert "KeyError: 'labels'" in done.stdout


def press_ctrl_c(folder: Path, during: str, *, real: bool = False) -> tuple[str, str]:
    """Run the command on train.py, press Ctrl-C once when stderr has a text; return stdout and stderr."""
    (folder / "temporary").mkdir()
    process = subprocess.Popen(
        [python_for(cwd=folder, real=real), "-m", "halfguard", "why", "--json", "train.py"],
        cwd=folder,
        env=environment() | {"TMPDIR": str(folder / "temporary")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A job in the background may have been started with Ctrl-C switched off, which is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if during in line:
            process.send_signal(signal.SIGINT)
            break
    out, rest = process.communicate(timeout=360)
    assert not list((folder / "temporary").glob("halfguard-*"))
    return out, "".join(seen) + rest


def test_ctrl_c_answers_with_what_is_known(tmp_path: Path) -> None:
    text = (SCRIPTS / "healthy_scaler.py").read_text().replace("range(30)", "range(10**9)")
    (tmp_path / "train.py").write_text(text)
    out, err = press_ctrl_c(tmp_path, "running the script: step", real=True)
    answer = ScriptAnswer.from_json(out)
    assert answer.outcome == "interrupted", err
    assert answer.backward > 0


SLOW = """
import time
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(60):
    time.sleep(5 if step == 3 else 0.3)
    x = torch.randn(16, 8) * (3000 if step == 3 else 1)
    y = net(x).half()
    loss = (y * y).mean().float()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
"""


def test_lines_are_tried_in_passes_too_where_the_process_cannot_be_forked(tmp_path: Path) -> None:
    thread = (
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    text = thread + (SCRIPTS / "changes_folder.py").read_text()
    answer = ask_about(text, tmp_path)
    assert answer.cure.trial.startswith("this line in FP32")
    assert "--- a/train.py\n" in answer.cure.patch


@pytest.mark.parametrize(
    "during", ["tracking step 3", "trying fixes for step 3", "running the patched script"]
)
def test_ctrl_c_pressed_once_ends_a_later_pass_too(tmp_path: Path, during: str) -> None:
    (tmp_path / "train.py").write_text(SLOW)
    out, err = press_ctrl_c(tmp_path, during)
    answer = ScriptAnswer.from_json(out)
    assert (answer.outcome, answer.step) == ("non-finite value", 3), err
    assert any(f"interrupted while {during}" in note for note in answer.notes), answer.notes
    assert "Traceback" not in err
    is_tracked = during != "tracking step 3"
    assert (answer.culprit is not None and answer.culprit.op == "mul") is is_tracked
    if "patched" in during:
        assert answer.in_fp32 == "fine"
        assert "the patched script" not in answer.cure.trial


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nothing.py", "The file nothing.py does not exist"),
        (".", ". is a folder, not a script."),
    ],
)
def test_what_is_no_script_is_a_usage_error(tmp_path: Path, name: str, told: str) -> None:
    done = why(name, cwd=tmp_path, real=True)
    assert done.returncode == 2
    assert told in done.stderr


def test_a_script_without_its_options_ends_after_the_first_pass(tmp_path: Path) -> None:
    shutil.copy2(SCRIPTS / "gradient_penalty.py", tmp_path)
    done = why("gradient_penalty.py", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("The script exited before its first training step")
    text = " ".join(done.stdout.split())
    assert "error: the following arguments are required: --steps" in text
    assert "options, write them after its name" in text
    assert "in FP32" not in done.stderr


def test_the_step_of_an_optimizer_is_named_with_the_line_that_made_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import loops\nloops.run()\n")
    (tmp_path / "loops.py").write_text(HALF_ADAM)
    done = why("train.py", cwd=tmp_path)
    text = " ".join(done.stdout.split())
    assert (
        "addcdiv returned the first NaN or Inf, in the optimizer's step (Adam, created at loops.py:5)"
        in text
    )
    assert "forward pass" not in text
    assert str(tmp_path) not in text


def test_a_nan_that_the_data_had_is_followed_to_the_line_that_made_it(tmp_path: Path) -> None:
    answer = ask("constant_sensor.py", tmp_path)
    line = culprit_line("constant_sensor.py")
    assert (answer.step, answer.culprit.op, answer.culprit.line) == (5, "div", line)
    assert answer.in_fp32 == "fails"
    assert "from its first line" in answer.repeated
