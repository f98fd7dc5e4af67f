"""The public surface: what is promised exists, and importing it costs nothing."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import halfguard
from tests.support.forks import forked_python


def test_every_public_name_resolves() -> None:
    assert set(dir(halfguard)) == set(halfguard.__all__)
    for name in halfguard.__all__:
        assert getattr(halfguard, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        halfguard.nonsense  # noqa: B018


def test_importing_halfguard_imports_no_torch() -> None:
    program = "import sys, halfguard; halfguard.formats; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# In a process of its own: Ray and others change the environment when they are imported.
_IMPORT_ALL = """
import importlib, pkgutil, sys, types, halfguard
names = [found.name for found in pkgutil.walk_packages(halfguard.__path__, "halfguard.")]
for name in names:
    module = importlib.import_module(name)
    package, _, last = name.rpartition(".")
    # A function that a package exports must not hide the module of the same name.
    seen = getattr(importlib.import_module(package), last)
    if not isinstance(module, types.ModuleType) or seen is not module:
        print(name, type(seen).__name__)
print(len(names), "modules", file=sys.stderr)
"""


@pytest.mark.slow
def test_every_module_is_reached_by_its_dotted_path() -> None:
    command = [forked_python("transformers"), "-W", "ignore", "-c", _IMPORT_ALL]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == ""
    files = list(Path(halfguard.__path__[0]).rglob("*.py"))
    assert result.stderr.split()[-2:] == [str(len(files) - 1), "modules"]


def test_no_room_has_the_name_of_a_public_function() -> None:
    packages = {found.name for found in pkgutil.iter_modules(halfguard.__path__)}
    clashes = packages & set(halfguard.__all__)
    assert all(isinstance(getattr(halfguard, name), ModuleType) for name in clashes)
