"""Hyperparameters inside TensorBoard's event files."""

from __future__ import annotations

import json
from typing import Any

from halfguard.comparison.encodings.protobuf import fields, float_of, messages, text


def logged_arguments(logged: str) -> dict[str, Any]:
    """Return the arguments that transformers logs as JSON text."""
    try:
        found = json.loads(logged)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def logged_hyperparameters(metadata: bytes) -> dict[str, Any]:
    """Return the values in the data of the plugin "hparams": a map of google.protobuf.Value."""
    found: dict[str, Any] = {}
    for plugin in messages(metadata, 1):
        if text(plugin, 1) != "hparams":
            continue
        for start in (s for data in messages(plugin, 2) for s in messages(data, 3)):
            for entry in messages(start, 1):
                for value in messages(entry, 2):
                    found[text(entry, 1)] = _plain(value)
    return found


def _plain(value: bytes) -> object:
    for number, content in fields(value):
        if number == 2:
            double = float_of(content)
            return int(double) if double.is_integer() else double
        if number == 3 and isinstance(content, bytes):
            return content.decode(errors="replace")
        if number == 4:
            return bool(content)
    return None
