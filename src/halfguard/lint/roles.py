"""Which names are scalers, optimizers, schedulers and models, judged by how they are made and used.

One idea: a role belongs to a key (``scaler``, ``self.scaler``), so that what ``__init__`` makes is known
in every other method. A constructor or an annotation proves a role; a telling name alone never makes a
scaler, since scikit-learn's scalers are called that as well.
"""

from __future__ import annotations

import ast
import re
from functools import cached_property

from halfguard.lint.module import Function, Module
from halfguard.lint.names import key, last_name, receiver

SCALERS = {"GradScaler", "ShardedGradScaler"}
_OPTIMIZER = re.compile(r"(^|[._])(optim|optimi[sz]er|opt)(s)?(_?[a-z0-9]{1,13})?$", re.IGNORECASE)
_SCHEDULER = re.compile(r"(^|[._])(lr_?)?sched(uler)?(s)?(_?[a-z0-9]{1,8})?$", re.IGNORECASE)
_DISTRIBUTED = re.compile(
    r"DistributedDataParallel|DistributedSampler|init_process_group|FullyShardedDataParallel|"
    r"fully_shard|local_rank|LOCAL_RANK|world_size|WORLD_SIZE|\bDDP\b"
)


class Roles:
    """The roles of one module's variables, found once."""

    def __init__(self, module: Module) -> None:
        self.module = module

    def canonical(self, node: ast.AST | None) -> str:
        """The key of a variable, with a local alias (``scaler = self.scaler``) followed."""
        name = key(node) if node is not None else ""
        if not name or "." in name:
            return name
        bound = self.module.latest(node) if node is not None else None
        if bound and isinstance(bound.value, ast.Attribute):
            return key(bound.value) or name
        return name

    @cached_property
    def constructed_scalers(self) -> list[ast.Call]:
        """Every call that makes a scaler."""
        return list(self.module.calls(*SCALERS))

    @cached_property
    def scalers(self) -> frozenset[str]:
        """Keys that hold a gradient scaler."""
        found = {
            name
            for name, bindings in self.module.bindings.items()
            if any(b.value is not None and _makes_scaler(b.value) for b in bindings)
        }
        for function in self.module.functions:
            found |= {a.arg for a in _arguments(function) if _says_scaler(a.annotation)}
        for call in self.module.calls("unscale_"):
            found.add(key(receiver(call) or call))
        for call in self.module.calls("backward"):
            scaled = receiver(call)
            if isinstance(scaled, ast.Call) and last_name(scaled) == "scale":
                found.add(key(receiver(scaled) or call))
        return frozenset(found - {""}) | self._aliases(found)

    def _aliases(self, found: set[str]) -> frozenset[str]:
        """Attributes that a scaler parameter was stored in: ``self.scaler = scaler``."""
        return frozenset(
            name
            for name, bindings in self.module.bindings.items()
            if any(b.value is not None and key(b.value) in found - {""} for b in bindings)
        )

    @cached_property
    def has_scaler(self) -> bool:
        """Whether this file makes or uses a gradient scaler at all."""
        return bool(self.scalers or self.constructed_scalers)

    def is_scaler(self, node: ast.AST | None) -> bool:
        """Whether an expression is a gradient scaler."""
        return node is not None and (
            key(node) in self.scalers or self.canonical(node) in self.scalers
        )

    def is_optimizer(self, node: ast.AST | None) -> bool:
        """Whether an expression is an optimizer: made by ``torch.optim``, or named like one."""
        name = key(node) if node is not None else ""
        if not name:
            return False
        if any(self._is_optim_call(b.value) for b in self.module.bindings.get(name, ())):
            return True
        return bool(_OPTIMIZER.search(name)) and not self.is_scheduler(node)

    def _is_optim_call(self, value: ast.expr | None) -> bool:
        if not isinstance(value, ast.Call):
            return False
        name = self.module.dotted(value.func)
        return name.startswith("torch.optim.") and "lr_scheduler" not in name

    def is_scheduler(self, node: ast.AST | None) -> bool:
        """Whether an expression is a learning-rate scheduler."""
        name = key(node) if node is not None else ""
        made = any(
            isinstance(b.value, ast.Call) and "lr_scheduler" in self.module.dotted(b.value.func)
            for b in self.module.bindings.get(name, ())
        )
        return made or bool(name and _SCHEDULER.search(name))

    @cached_property
    def may_be_distributed(self) -> bool:
        """Whether this file runs, or is prepared to run, on several ranks."""
        module = self.module
        if module.imports("torch.distributed", "horovod", "deepspeed"):
            return True
        return bool(_DISTRIBUTED.search(module.source.text))

    @cached_property
    def has_framework(self) -> bool:
        """Whether a trainer that brings its own scaling drives this file."""
        return self.module.imports("accelerate", "deepspeed", "apex", "colossalai") or bool(
            self.module.imports("lightning", "pytorch_lightning", "lightning_fabric")
        )

    def is_torch_module(self, node: ast.AST) -> bool:
        """Whether a node stands in a class that derives from ``nn.Module`` or a like name."""
        owner = self.module.class_of(node)
        if owner is None:
            return False
        return any(
            self.module.dotted(base).endswith(("Module", "Model", "Layer", "Loss", "Head"))
            for base in owner.bases
        )


def _arguments(function: Function) -> list[ast.arg]:
    a = function.args
    return [*a.posonlyargs, *a.args, *a.kwonlyargs]


def _makes_scaler(value: ast.expr) -> bool:
    """``GradScaler(...)``, also as one side of a condition."""
    if isinstance(value, ast.IfExp):
        return _makes_scaler(value.body) or _makes_scaler(value.orelse)
    if isinstance(value, ast.BoolOp):
        return any(_makes_scaler(part) for part in value.values)
    return isinstance(value, ast.Call) and last_name(value) in SCALERS


def _says_scaler(annotation: ast.expr | None) -> bool:
    if annotation is None:
        return False
    if isinstance(annotation, ast.Constant):
        return isinstance(annotation.value, str) and "GradScaler" in annotation.value
    if isinstance(annotation, ast.BinOp):
        return _says_scaler(annotation.left) or _says_scaler(annotation.right)
    if isinstance(annotation, ast.Subscript):
        return _says_scaler(annotation.slice)
    return key(annotation).endswith("GradScaler")
