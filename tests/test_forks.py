"""A program in a fork of the server behaves as in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.forks import forked_path, forked_python, group_of
from tests.support.programs import captured

pytestmark = pytest.mark.slow

PROGRAMS = {
    "arguments": "import sys; print(sys.argv, sys.path[0], __name__, __file__)",
    "variables": "import os; print(os.getcwd(), os.environ['COLUMNS'], 'OLDPWD_' in os.environ)",
    "input": "import sys; print(sys.stdin.read(), end='')",
    "exit code": "import sys; sys.exit(3)",
    "exit text": "import sys; sys.exit('why')",
    "exception": "def f():\n    raise KeyError(1)\nf()",
    "warning": "import warnings; warnings.warn('old', FutureWarning)",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "at exit": "import atexit; atexit.register(print, 'last'); print('first')",
    "thread": "import threading; threading.Timer(0.1, print, ['later']).start()",
    "destroyed": "class C:\n    def __del__(self): print('gone')\nc = C()",
    "sibling": "import beside; print(beside.VALUE)",
}


def run(python: str, *arguments: str, folder: Path) -> tuple[int, str, str]:
    done = captured(python, *arguments, cwd=folder, stdin="typed\n", env={"COLUMNS": "66"})
    return done.returncode, done.stdout, done.stderr


def ways(name: str, text: str) -> list[tuple[str, ...]]:
    """Return how a program is started: all as a file, some also as a module, as text, and with -W error."""
    script = ("program.py", "a", "-b")
    if name == "arguments":
        return [script, ("-m", "program", "a")]
    if name == "exception":
        return [script, ("-m", "program", "a"), ("-c", text, "a")]
    return [script, ("-W", "error", *script)] if name == "warning" else [script]


def test_programs_print_and_end_as_in_a_process(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 5\n")
    for name, text in PROGRAMS.items():
        (tmp_path / "program.py").write_text(text)
        for way in ways(name, text):
            expected = run(sys.executable, *way, folder=tmp_path)
            assert run(forked_python(), *way, folder=tmp_path) == expected, (name, way)


def test_torch_is_imported_and_a_backward_pass_works(tmp_path: Path) -> None:
    text = (
        "import sys; print('torch' in sys.modules)\n"
        "import torch; torch.ones(1, requires_grad=True).sum().backward()"
    )
    assert run(forked_python(), "-c", text, folder=tmp_path) == (0, "True\n", "")
    # What the server cannot do is done by a real process.
    assert run(forked_python(), "-I", "-c", text, folder=tmp_path) == (0, "False\n", "")


def test_a_program_ends_with_the_process_that_waits_for_it(tmp_path: Path) -> None:
    text = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(60)"
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([forked_python(), "-c", text], cwd=tmp_path, timeout=5, check=False)
    pid = int((tmp_path / "pid").read_text())
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.1)
    else:
        pytest.fail("it still runs")


def test_ctrl_c_reaches_the_program(tmp_path: Path) -> None:
    text = (
        "import time\ntry:\n    print(1, flush=True); time.sleep(60)\n"
        "except KeyboardInterrupt:\n    print('stopped')"
    )
    process = subprocess.Popen(
        [forked_python(), "-c", text], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "stopped\n"
    assert process.returncode == 0


def test_ranks_of_torchrun_are_forks_and_a_killed_one_is_started_again(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(
        "import os, pathlib, signal, sys\n"
        "print('torch' in sys.modules, os.environ['RANK'], os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        "if os.environ['RANK'] == '1' and not pathlib.Path('killed').exists():\n"
        "    pathlib.Path('killed').touch(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    torchrun = [str(forked_path() / "torchrun"), "--standalone", "--nproc-per-node=2"]
    code, printed, error = run(*torchrun, "--max-restarts=1", "rank.py", folder=tmp_path)
    assert code == 0, error
    assert {"True 1 0", "True 0 1", "True 1 1"} <= set(printed.splitlines())


def test_the_group_is_that_of_the_imports() -> None:
    assert group_of("import torch\n# from lightning") == "torch"
    assert group_of("def f():\n    from lightning.pytorch import Trainer") == "lightning"
    assert group_of("import torch\nimport accelerate") == "transformers"
