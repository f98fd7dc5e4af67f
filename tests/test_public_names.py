"""The public surface: what is promised exists, and importing it costs nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import halfguard


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
