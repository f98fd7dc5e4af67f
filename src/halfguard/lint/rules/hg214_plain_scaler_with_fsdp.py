"""FSDP1 shards the gradients, and a plain GradScaler sees one shard only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.conditions import exclude_each_other
from halfguard.lint.expressions import argument, boolean, name_of
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile

META = Meta(
    contains=("FullyShardedDataParallel",),
    also_contains=("GradScaler(",),
)
_FSDP = "torch.distributed.fsdp"
_SHARDING = re.compile(r"fsdp|shard", re.IGNORECASE)


def check(file: PythonFile) -> Iterator[Match]:
    """Find plain scalers beside models that FSDP1 shards."""
    if any(file.full_name(n).endswith("ShardedGradScaler") for n in _names(file)):
        return
    wrapped = [call for call in file.nodes(ast.Call) if _wraps(file, call)]
    for call in file.roles.constructed_scalers if wrapped else ():
        if not file.is_torch_call(call) or _is_off(file, call):
            continue
        if not any(exclude_each_other(file, call, other) for other in wrapped):
            message = "A plain GradScaler sees this rank's shard only: the ranks of FSDP diverge."
            yield match_at(call, message)


def _names(file: PythonFile) -> list[ast.expr]:
    """Return the names that the file uses; an import alone is no use."""
    return [*file.nodes(ast.Name), *file.nodes(ast.Attribute)]


def _is_off(file: PythonFile, call: ast.Call) -> bool:
    """Return whether a scaler is off, or is on or off by a test for sharding."""
    enabled = argument(call, -1, "enabled")
    if enabled is None or boolean(enabled) is not None:
        return boolean(enabled) is False
    value = file.assigned_value(enabled)
    texts = (ast.unparse(node) for node in (enabled, value) if node is not None)
    return any(map(_SHARDING.search, texts))


def _wraps(file: PythonFile, call: ast.Call) -> bool:
    """Return whether a call wraps a model in FSDP1 that shards its gradients."""
    name = file.full_name(call.func)
    if not name.startswith(_FSDP) or not name.endswith("FullyShardedDataParallel"):
        return False
    strategy = file.assigned_value(argument(call, 2, "sharding_strategy"))
    return not name_of(strategy).endswith("NO_SHARD")
