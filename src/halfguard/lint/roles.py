"""Find the variables that hold scalers, optimizers and schedulers.

A role belongs to a variable name (``scaler``, ``self.scaler``), so that an object made in ``__init__`` is
known in every method. A constructor, an annotation or the way of use proves that a variable is a scaler. The
name alone does not: scikit-learn has objects called scalers too.
"""

from __future__ import annotations

import ast
import re
from functools import cached_property

from halfguard.lint.expressions import called_name, name_of, receiver
from halfguard.lint.syntax_tree import Assignment, Function, SyntaxTree

SCALERS = {"GradScaler", "ShardedGradScaler"}
_OPTIMIZER = re.compile(
    r"(^|[._])(?!opti(on|mi[sz]ation))(optim|optimi[sz]er|opt)(s)?(_?[a-z0-9]{1,13})?$",
    re.IGNORECASE,
)
_SCHEDULER = re.compile(r"(^|[._])(lr_?)?sched(uler)?(s)?(_?[a-z0-9]{1,8})?$", re.IGNORECASE)
_DISTRIBUTED = re.compile(
    r"DistributedDataParallel|DistributedSampler|init_process_group|FullyShardedDataParallel|"
    r"fully_shard|local_rank|LOCAL_RANK|world_size|WORLD_SIZE|\bDDP\b"
)


class Roles:
    """Roles of the variables in one file."""

    def __init__(self, tree: SyntaxTree) -> None:
        self.tree = tree

    def resolve_alias(self, node: ast.AST | None) -> str:
        """Return the name of a variable, or of the attribute behind it after ``scaler = self.scaler``."""
        name = name_of(node)
        value = self.tree.assigned_value(node) if "." not in name else None
        return name_of(value) or name if isinstance(value, ast.Attribute) else name

    @cached_property
    def constructed_scalers(self) -> list[ast.Call]:
        """Every call that constructs a scaler."""
        return list(self.tree.calls(*SCALERS))

    @cached_property
    def assigned_scalers(self) -> frozenset[str]:
        """Names of the variables that a new scaler is assigned to."""
        makers = {self.tree.function_of(call) for call in self.constructed_scalers}
        if not makers:
            return frozenset()
        return frozenset(
            name
            for name, assigned in self.tree.assignments.items()
            if any(self._is_new_scaler(a, makers) for a in assigned)
        )

    def _is_new_scaler(self, assigned: Assignment, makers: set[Function | None]) -> bool:
        """Return whether a scaler is constructed here, or by the function of this file that is called."""
        value = assigned.value or assigned.container
        if value is None:
            return False
        if assigned.value is not None and _constructs_scaler(value):
            return True
        function = self.tree.local_function(value) if isinstance(value, ast.Call) else None
        if function is None or function not in makers:
            return False
        for node in self.tree.returns_of(function):
            made = [node.value] if assigned.value is not None else _parts_of(node.value)
            made = made[assigned.element : assigned.element + 1]
            if any(part is not None and _constructs_scaler(self._behind(part)) for part in made):
                return True
        return False

    def _behind(self, node: ast.expr) -> ast.expr:
        assigned = self.tree.last_assignment(node) if isinstance(node, ast.Name) else None
        return assigned.value if assigned and assigned.value is not None else node

    @cached_property
    def scalers(self) -> frozenset[str]:
        """Names of the variables that hold a gradient scaler."""
        found = set(self.assigned_scalers)
        for function in self.tree.functions:
            found |= {a.arg for a in _arguments(function) if _is_scaler_annotation(a.annotation)}
        for call in self.tree.calls("unscale_"):
            found.add(name_of(receiver(call) or call))
        for call in self.tree.calls("backward"):
            scaled = receiver(call)
            if isinstance(scaled, ast.Call) and called_name(scaled) == "scale":
                found.add(name_of(receiver(scaled) or call))
        found |= self._used_as_scaler()
        return frozenset(found - {""}) | self._aliases(found)

    def _used_as_scaler(self) -> set[str]:
        """Return the variables named like a scaler that step an optimizer and are updated."""
        stepped = {
            name_of(receiver(call))
            for call in self.tree.calls("step")
            if call.args and self.is_optimizer(call.args[0])
        }
        updated = {name_of(receiver(call)) for call in self.tree.calls("update")}
        return {name for name in stepped & updated if name.lower().endswith("scaler")}

    def _aliases(self, found: set[str]) -> frozenset[str]:
        """Return the variables that a scaler is assigned to: ``self.scaler = scaler``."""
        return frozenset(
            name
            for name, assigned in self.tree.assignments.items()
            if any(a.value is not None and name_of(a.value) in found - {""} for a in assigned)
        )

    @cached_property
    def has_scaler(self) -> bool:
        """True if this file constructs or uses a gradient scaler."""
        return bool(self.scalers or self.constructed_scalers)

    def is_scaler(self, node: ast.AST | None) -> bool:
        return name_of(node) in self.scalers or self.resolve_alias(node) in self.scalers

    def is_optimizer(self, node: ast.AST | None) -> bool:
        """Return whether an expression comes from ``torch.optim`` or is named like an optimizer."""
        name = name_of(node)
        if not name:
            return False
        if any(self._is_optim_call(a.value) for a in self.tree.assignments.get(name, ())):
            return True
        return bool(_OPTIMIZER.search(name)) and not self.is_scheduler(node)

    def _is_optim_call(self, value: ast.expr | None) -> bool:
        if not isinstance(value, ast.Call):
            return False
        name = self.tree.full_name(value.func)
        return name.startswith("torch.optim.") and "lr_scheduler" not in name

    def is_scheduler(self, node: ast.AST | None) -> bool:
        name = name_of(node)
        made = any(
            isinstance(a.value, ast.Call) and "lr_scheduler" in self.tree.full_name(a.value.func)
            for a in self.tree.assignments.get(name, ())
        )
        return made or bool(name and _SCHEDULER.search(name))

    @cached_property
    def may_be_distributed(self) -> bool:
        """True if this file has code for several ranks."""
        tree = self.tree
        if tree.imports("torch.distributed", "horovod", "deepspeed"):
            return True
        return bool(_DISTRIBUTED.search(tree.source.text))

    def is_in_nn_module(self, node: ast.AST) -> bool:
        """Return whether a node is in a class derived from ``nn.Module``.

        The name of a base shows it, or a method ``forward`` with ``self``, if bases are in other files.
        """
        owner = self.tree.class_of(node)
        if owner is None or not owner.bases:
            return False
        if any(
            self.tree.full_name(base).endswith(("Module", "Model", "Layer", "Loss", "Head"))
            for base in owner.bases
        ):
            return True
        return any(
            isinstance(method, ast.FunctionDef)
            and method.name == "forward"
            and method.args.args[:1]
            and method.args.args[0].arg == "self"
            for method in owner.body
        )


def _arguments(function: Function) -> list[ast.arg]:
    a = function.args
    return [*a.posonlyargs, *a.args, *a.kwonlyargs]


def _parts_of(value: ast.expr | None) -> list[ast.expr | None]:
    return [*value.elts] if isinstance(value, ast.Tuple) else []


def _constructs_scaler(value: ast.expr) -> bool:
    """Return whether a value is ``GradScaler(...)``, or may be one: ``... if amp else None``."""
    if isinstance(value, ast.IfExp):
        return _constructs_scaler(value.body) or _constructs_scaler(value.orelse)
    if isinstance(value, ast.BoolOp):
        return any(_constructs_scaler(part) for part in value.values)
    return isinstance(value, ast.Call) and called_name(value) in SCALERS


def _is_scaler_annotation(annotation: ast.expr | None) -> bool:
    if annotation is None:
        return False
    if isinstance(annotation, ast.Constant):
        return isinstance(annotation.value, str) and "GradScaler" in annotation.value
    if isinstance(annotation, ast.BinOp):
        return _is_scaler_annotation(annotation.left) or _is_scaler_annotation(annotation.right)
    if isinstance(annotation, ast.Subscript):
        return _is_scaler_annotation(annotation.slice)
    return name_of(annotation).endswith("GradScaler")
