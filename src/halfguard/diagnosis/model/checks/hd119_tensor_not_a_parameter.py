"""HD119: a module holds a trainable tensor that is not one of its parameters.

``self.w = torch.rand(n, requires_grad=True)`` gets gradients, but ``model.parameters()`` does not contain it.
So ``model.to(device)`` and casts leave it where it is, checkpoints do not save it, and an optimizer that was
given ``model.parameters()`` does not train it. The same holds for tensors in a plain list or dict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from halfguard.diagnosis.model.training_setup import TrainingSetup, join_names
from halfguard.records.finding import Finding

_REGISTERED = frozenset({"_parameters", "_buffers", "_modules"})


def check(setup: TrainingSetup) -> Iterator[Finding]:
    """Find trainable tensors of modules that are not parameters of the model."""
    if setup.model is None:
        return
    known = set(map(id, setup.model.parameters()))
    found = {
        place: value
        for place, value in _attributes(setup.model)
        if any(t.requires_grad and t.is_leaf and id(t) not in known for t in _tensors(value))
    }
    if not found:
        return
    trained = {id(p.weight) for p in setup.parameters}
    all_trained = all(id(t) in trained for value in found.values() for t in _tensors(value))
    place, value = next(iter(found.items()))
    yield Finding(
        code="HD119",
        severity="warning" if all_trained or not setup.optimizers else "error",
        message=f"trainable, but not a parameter of the model: {join_names(found)}.",
        subject=place,
        why="model.parameters() does not contain it: model.to() and casts leave it where it is, and "
        f"checkpoints do not save it.{'' if all_trained else ' No optimizer trains it.'}",
        cure=_cure(place, value),
    )


def _attributes(model: nn.Module) -> Iterator[tuple[str, object]]:
    """Yield what modules hold beside parameters, buffers and modules, with its place in the model."""
    for prefix, module in model.named_modules():
        for name, value in list(vars(module).items()):
            if name not in _REGISTERED:
                yield f"{prefix}.{name}".lstrip("."), value


def _tensors(value: object) -> list[Tensor]:
    if isinstance(value, Mapping):
        value = list(value.values())
    items = value if isinstance(value, list | tuple) else [value]
    return [item for item in items if isinstance(item, Tensor)]


def _cure(place: str, value: object) -> str:
    owner, _, name = place.rpartition(".")
    module = f"model.get_submodule({owner!r})" if owner else "model"
    kind = {Mapping: "ParameterDict", list | tuple: "ParameterList"}
    made = next((made for type_, made in kind.items() if isinstance(value, type_)), "Parameter")
    held = f"module.{name}" + (".detach()" if made == "Parameter" else "")
    return f"module = {module}\nmodule.{name} = torch.nn.{made}({held})  # then build the optimizer"
