"""A process that has imported torch, and a framework, and runs programs in forks of itself.

``python fork_server.py FOLDER OWNER MODULE...`` listens at ``FOLDER/socket`` until the process OWNER or the
folder is gone. A program that ``fork_client.py`` sends runs in a fork as in a process of its own: with its
arguments, variables, folder and streams, as ``__main__``. Nothing that it does reaches another one.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

# Libraries have read such variables when they were imported here.
_READ_ON_IMPORT = (
    "PYTHON",
    "OMP_",
    "MKL_",
    "KMP_",
    "OPENBLAS_",
    "TORCH",
    "PYTORCH",
    "CUDA_",
    "HF_",
    "MALLOC_",
    "LD_",
)
_NOT_READ = (
    "PYTHONPATH",
    "TORCHINDUCTOR_CACHE_DIR",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
    "HF_HUB_OFFLINE",  # it is set here: no test needs the hub
    # Of torchrun, for its ranks.
    "PYTHON_EXEC",
    "TORCHELASTIC_",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
)
_AS_ERRORS = (
    "error",
    None,
    Warning,
    None,
    0,
)  # the filter of -W error, with which this process runs


def main() -> None:
    folder, owner, modules = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest
    del sys.path[0]  # the folder of this file
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError:  # not all frameworks are there on each machine
            traceback.print_exc()
    _count_seconds(folder, os.environ)
    gc.collect()
    gc.freeze()  # a fork that looks for garbage would copy all pages
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "starting"))
        listening.listen(64)
        (folder / "starting").rename(folder / "socket")
        connection = _serve(listening, folder, owner)
    if connection is not None:
        _answer(connection, folder)


def _serve(listening: socket.socket, folder: Path, owner: int) -> socket.socket | None:
    """Accept programs; return once in a fork for each of them, and at the end."""
    while folder.exists() and _is_alive(owner):
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not select.select([listening], [], [], 0.5)[0]:
            continue
        connection, _ = listening.accept()
        if not os.fork():
            return connection
        connection.close()
    return None


def _count_seconds(folder: Path, variables: Mapping[str, str]) -> None:
    """Write down the processor time of this process and its children, for the worker that has asked."""
    path = folder.parent / f"seconds-{variables.get('PYTEST_XDIST_WORKER', 'alone')}"
    with suppress(FileNotFoundError), path.open("a") as file:  # the folder may be gone
        file.write(f"{sum(os.times()[:4])}\n")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _answer(connection: socket.socket, folder: Path) -> None:
    """Run one program in a fork, and send its process and its exit code; end it if nobody waits for it."""
    message, streams, _, _ = socket.recv_fds(connection, 2**20, 3)
    while not message.endswith(b"\n"):
        message += connection.recv(2**20)
    request = json.loads(message)
    if not can_run(request["options"], request["variables"]):
        connection.sendall(b"no\n")
        os._exit(0)
    pid = os.fork()
    if not pid:
        connection.close()
        _become(request, streams)
        return
    for stream in streams:
        os.close(stream)
    connection.sendall(f"{pid}\n".encode())
    ended = os.pidfd_open(pid)
    if ended not in select.select([ended, connection.fileno()], [], [])[0]:
        os.killpg(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    _count_seconds(folder, request["variables"])
    with suppress(BrokenPipeError):
        connection.sendall(f"{code}\n".encode())
    os._exit(0)


def can_run(options: Sequence[str], variables: Mapping[str, str]) -> bool:
    """Return whether a process that is started anew would import the same."""
    names = {
        name
        for name in {*variables, *os.environ}
        if name.startswith(_READ_ON_IMPORT) and not name.startswith(_NOT_READ)
    }
    same = all(variables.get(name) == os.environ.get(name) for name in names)
    warn = [option for option in options if option != "-u"]
    return same and warn in ([], ["-W", "error"], ["-W", "ignore"])


def _become(request: dict[str, Any], streams: Sequence[int]) -> None:
    """Take over what belongs to a process, and run the program as ``__main__``; does not return."""
    os.setpgid(0, 0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ours = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    theirs = [path for path in request["variables"].get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*theirs, *(path for path in sys.path if path not in ours)]
    os.environ.clear()
    os.environ.update(request["variables"])
    os.chdir(request["folder"])
    if "-u" in request["options"]:
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
        request["options"].remove("-u")
    sys.warnoptions[:] = request["options"][1:]
    asked = [(action, *_AS_ERRORS[1:]) for action in sys.warnoptions]
    first = warnings.filters.index(_AS_ERRORS)
    warnings.filters[first : first + 1] = asked  # type: ignore[index]
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # not that of all other forks
    sys.modules["__main__"] = main = ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    _end(_run(request["program"], request["arguments"], main))


def _run(program: str, arguments: list[str], main: ModuleType) -> int:
    """Run the program as Python does; return its exit code."""
    try:
        if Path(program).name in ("halfguard", "torchrun"):
            _run_command(program, arguments)
        elif arguments[0] == "-c":
            sys.path.insert(0, "")
            sys.argv = ["-c", *arguments[2:]]
            exec(compile(arguments[1], "<string>", "exec", dont_inherit=True), main.__dict__)
        elif arguments[0] == "-m":
            sys.path.insert(0, str(Path.cwd()))
            sys.argv = ["-m", *arguments[2:]]
            if not hasattr(sys.modules.get(arguments[1]), "__path__"):
                sys.modules.pop(arguments[1], None)  # it was imported here, but has not run
            runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined]
        else:
            _run_script(arguments, main)
    except SystemExit as leaving:
        if isinstance(leaving.code, int) or leaving.code is None:
            return leaving.code or 0
        print(leaving.code, file=sys.stderr)
        return 1
    except BaseException as error:  # noqa: BLE001 - the program's own
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _run_command(program: str, arguments: list[str]) -> None:
    sys.argv = [program, *arguments]
    if Path(program).name == "halfguard":
        from halfguard.cli import main as command
    else:
        from torch.distributed.run import main as command

        os.environ["PYTHON_EXEC"] = str(Path(program).with_name("python"))
    command()


def _run_script(arguments: list[str], main: ModuleType) -> None:
    path = os.path.abspath(arguments[0])  # noqa: PTH100 - links stay, as in Python
    sys.path.insert(0, str(Path(path).resolve().parent))
    sys.argv = list(arguments)
    main.__file__ = path
    with io.open_code(path) as file:
        exec(compile(file.read(), path, "exec", dont_inherit=True), main.__dict__)


def _end(code: int) -> NoReturn:
    """End as Python does, but leave the modules as they are: to clear those takes seconds."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.modules["__main__"].__dict__.clear()
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120
    os._exit(code)


if __name__ == "__main__":
    main()
