"""Versions of installed packages, without importing them."""

from __future__ import annotations

from importlib import metadata


def installed_version(package: str) -> str:
    """Return the version of an installed package; an empty string if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
