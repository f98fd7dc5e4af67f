"""Compile the device with one call of the compiler, and keep the result between runs.

The result is found again by a digest of everything that it depends on. Several processes may ask at once: one
compiles, and the others wait for a lock that the system releases if that process dies.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import torch
from torch.utils import cpp_extension

_SOURCES = Path(__file__).parent / "csrc"
_NAME = "halfguard_standin"
# Optimized: thousands of tests pay for every operation, and only one pays for the compiler.
_FLAGS = ["-std=c++20", "-O2", "-w", "-fPIC", "-shared", f"-DTORCH_EXTENSION_NAME={_NAME}"]
_LIBRARIES = ["-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10"]


class BuildError(Exception):
    """The device cannot be compiled on this machine; the text says why, and what to install."""


def build() -> Path:
    """Return the compiled library; compile it first if its sources or torch have changed."""
    _raise_if_tools_are_missing()
    folder = _cache() / _digest()
    library = folder / f"{_NAME}.so"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _compile(library)
    return library


def import_extension(library: Path) -> Any:
    """Import the compiled library as a module; torch must be imported before."""
    spec = importlib.util.spec_from_file_location(_NAME, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _raise_if_tools_are_missing() -> None:
    if not sys.platform.startswith("linux"):
        raise BuildError("the stand-in accelerator is compiled on Linux only")
    if shutil.which("g++") is None:
        raise BuildError("the stand-in accelerator needs a C++ compiler: apt-get install g++")
    if not (_python_headers() / "Python.h").exists():
        raise BuildError(
            "the stand-in accelerator needs the headers of Python: apt-get install python3-dev"
        )


def _compile(library: Path) -> None:
    unfinished = library.with_suffix(f".{os.getpid()}")
    includes = [*cpp_extension.include_paths(), str(_python_headers())]
    folders = cpp_extension.library_paths()
    command = ["g++", *_FLAGS, *(part for path in includes for part in ("-isystem", path))]
    command += [str(_SOURCES / "standin.cpp"), "-o", str(unfinished)]
    command += [*(f"-L{folder}" for folder in folders), *_LIBRARIES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"the stand-in accelerator does not compile:\n{done.stderr[-5000:]}")
    unfinished.replace(library)


def _digest() -> str:
    parts: list[object] = [torch.__version__, sys.version, platform.machine(), _FLAGS]
    parts += [path.read_text() for path in sorted(_SOURCES.iterdir())]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "halfguard" / "standin"


def _python_headers() -> Path:
    return Path(sysconfig.get_paths()["include"])
