"""Private names of torch that halfguard uses, each with a check of what halfguard expects of it.

torch may change these in any version, without a note. A version that breaks one fails here, with the name and
the packages that use it. A private name without an entry fails as well: use a public one, or enter it.
"""

from __future__ import annotations

import gc
import inspect
import math
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._decomp import decomposition_table
from torch.amp.grad_scaler import OptState, _refresh_per_optimizer_state
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper
from torch.distributed.device_mesh import _mesh_resources, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, _common_utils, fully_shard
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ChainedScheduler, LinearLR, LRScheduler, SequentialLR
from torch.utils import _python_dispatch, _pytree
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype
from torch.utils._mode_utils import no_dispatch
from torch.utils.checkpoint import DefaultDeviceType, _CheckpointFrame, checkpoint

from halfguard.step.parameters import WRAPPERS
from tests.support.cases import each
from tests.support.private_names import private_names

PACKAGE = Path(__file__).parents[1] / "src/halfguard"
# Private names of Python and of frameworks, which the search cannot tell from torch's.
NOT_OF_TORCH = {
    "_config": "multiprocessing",
    "_island": "halfguard.precision.islands",
    "_island_setting": "halfguard.precision.islands",
    "_fields": "namedtuple, ast",
    "_replace": "namedtuple",
    "_value_": "enum",
    "_detect_anomaly": "lightning.Trainer",
    "_skip_backward": "lightning's loop of fit(), set by StochasticWeightAveraging",
    "_optimizers": "accelerate.Accelerator",
    "_forward_module": "lightning.fabric.wrappers",
    "_is_accelerate_prepared": "accelerate",
    "_shared_state": "accelerate.state",
    "_prepare_inputs": "transformers.Trainer",
}

pytestmark = pytest.mark.usefixtures("seed")  # modules draw their weights

Check = Callable[[], None]
TABLE: dict[str, tuple[set[str], Check]] = {}


def used_by(packages: str, *names: str) -> Callable[[Check], Check]:
    """Enter names into the table with the packages that use them; the function below checks them."""

    def enter(check: Check) -> Check:
        TABLE.update({name: (set(packages.split()), check) for name in names})
        return check

    return enter


# -- tensors and storages


@used_by("guard investigation precision tracing", "_version")
def a_version_counts_changes_in_place() -> None:
    x = torch.zeros(2)
    before = x._version
    x.add_(1)
    x[0].mul_(2)  # through a view
    assert x._version == before + 2


@used_by("guard investigation numerics tracing workload", "_cdata")
def a_storage_has_an_identity() -> None:
    x = torch.zeros(2)
    assert x[1:].untyped_storage()._cdata == x.untyped_storage()._cdata
    assert x.clone().untyped_storage()._cdata != x.untyped_storage()._cdata


@used_by("diagnosis", "torch._C._has_storage")
def a_meta_tensor_has_a_storage_and_a_sparse_one_has_none() -> None:
    assert torch._C._has_storage(torch.empty(2, device="meta"))
    assert not torch._C._has_storage(torch.eye(2).to_sparse())


@used_by("diagnosis step", "_backward_hooks")
def a_tensor_lists_its_hooks() -> None:
    x = torch.zeros(2, requires_grad=True)
    assert not x._backward_hooks
    hook = x.register_hook(lambda gradient: gradient)
    assert len(x._backward_hooks or {}) == 1
    hook.remove()
    assert not x._backward_hooks


@used_by("precision", "_is_view")
def a_view_is_known() -> None:
    x = torch.zeros(2)
    assert (x._is_view(), x[:1]._is_view()) == (False, True)


@used_by("numerics replaying", "_values")
def values_of_a_sparse_tensor_share_its_memory() -> None:
    x = torch.eye(2).to_sparse()
    x._values().mul_(3)
    assert torch.equal(x.to_dense(), 3 * torch.eye(2))


# -- operations on many tensors


@used_by("precision", "torch._foreach_add_", "torch._foreach_neg", "torch._foreach_zero_")
def arithmetic_on_lists() -> None:
    xs, ys = [torch.ones(2), torch.ones(3)], [torch.ones(2), torch.full((3,), 2.0)]
    torch._foreach_add_(xs, torch._foreach_neg(ys))
    assert [x.tolist() for x in xs] == [[0, 0], [-1, -1, -1]]
    torch._foreach_zero_(xs)
    assert not any(x.any() for x in xs)


@used_by("guard", "torch.autograd.grad_mode._unsafe_preserve_version_counter")
def writes_can_be_hidden_from_a_graph() -> None:
    norm = nn.BatchNorm1d(2)
    loss = norm(torch.randn(4, 2)).square().sum()
    assert norm.running_mean is not None
    with _unsafe_preserve_version_counter((norm.running_mean,)):
        norm.running_mean.add_(1)
    loss.backward()  # it saved the statistics, and does not use them


@used_by("guard precision", "torch._foreach_copy_")
def copies_of_lists_convert_dtypes() -> None:
    half, full = [torch.zeros(2, dtype=torch.float16)], [torch.tensor([1.0, 65520.0])]
    torch._foreach_copy_(half, full)
    assert half[0].tolist() == [1.0, math.inf]


@used_by("guard numerics replaying", "torch._foreach_norm")
def norms_of_lists() -> None:
    xs = [torch.tensor([3.0, 4.0]), torch.tensor([math.nan])]
    assert torch._foreach_norm(xs, 2.0)[0] == 5
    assert torch._foreach_norm(xs, math.inf)[0] == 4
    assert torch._foreach_norm(xs, math.inf)[1].isnan()


@used_by("guard", "torch.utils._foreach_utils._group_tensors_by_device_and_dtype")
def groups_keep_positions() -> None:
    xs: list[Tensor | None] = [torch.zeros(1), torch.zeros(1).half(), torch.zeros(2)]
    groups = _group_tensors_by_device_and_dtype([xs], with_indices=True)
    found = {dtype: (tensors, indices) for (_, dtype), ([tensors], indices) in groups.items()}
    assert found[torch.float32][1] == [0, 2]
    assert found[torch.float16][0][0] is xs[1]


@used_by("numerics", "torch._chunk_cat")
def pieces_of_several_shapes_become_one() -> None:
    pieces = [torch.ones(2, 3), torch.ones(4), torch.ones(2, 2).t()]
    assert torch._chunk_cat(pieces, 0, 1).view(-1).sum() == 6 + 4 + 4


# -- the loss scaler


@used_by("replaying", "torch._amp_foreach_non_finite_check_and_unscale_")
def unscaling_reports_infinities() -> None:
    grads, found = [torch.tensor([2.0, 4.0]), torch.tensor([math.inf])], torch.zeros(())
    torch._amp_foreach_non_finite_check_and_unscale_(grads[:1], found, torch.tensor(0.5))
    assert (grads[0].tolist(), found.item()) == ([1, 2], 0)
    torch._amp_foreach_non_finite_check_and_unscale_(grads[1:], found, torch.tensor(0.5))
    assert found == 1


@used_by("guard", "torch._amp_update_scale_")
def the_scale_follows_an_overflow() -> None:
    scale, tracker = torch.full((), 8.0), torch.full((), 5, dtype=torch.int32)
    torch._amp_update_scale_(scale, tracker, torch.ones(()), 2.0, 0.5, 7)
    assert (scale.item(), tracker.item()) == (4, 0)
    torch._amp_update_scale_(scale, tracker, torch.zeros(()), 2.0, 0.5, 1)
    assert (scale.item(), tracker.item()) == (8, 0)


@used_by("guard", "torch.amp.grad_scaler._refresh_per_optimizer_state")
@used_by("guard investigation", "_per_optimizer_states")
def an_optimizers_state_begins_ready() -> None:
    scaler = torch.amp.GradScaler("cpu")
    assert _refresh_per_optimizer_state() == {
        "stage": OptState.READY,
        "found_inf_per_device": {},
    }
    assert scaler._per_optimizer_states[0] == _refresh_per_optimizer_state()


@used_by("guard", "_unscale_grads_")
def gradients_are_unscaled_by_a_method_that_returns_the_flags() -> None:
    names = list(inspect.signature(torch.amp.GradScaler._unscale_grads_).parameters)
    assert names == ["self", "optimizer", "inv_scale", "found_inf", "allow_fp16"]
    parameter = nn.Parameter(torch.ones(1))
    parameter.grad = torch.full((1,), 8.0)
    optimizer = torch.optim.SGD([parameter])
    scale, flag = torch.full((), 0.25), torch.zeros(())
    found = torch.amp.GradScaler("cpu")._unscale_grads_(optimizer, scale, flag, False)
    assert [value.item() for value in found.values()] == [0.0]
    assert parameter.grad.item() == 2.0


@used_by("guard investigation", "_scale", "_init_scale")
@used_by(
    "guard",
    "_growth_tracker",
    "_get_scale_async",
    "_check_scale_growth_tracker",
    "_growth_factor",
    "_backoff_factor",
    "_growth_interval",
)
def scale_and_tracker_are_tensors_after_the_first_loss() -> None:
    scaler = torch.amp.GradScaler("cpu", 8.0, 3.0, 0.25, 5)
    assert (scaler._scale, scaler._growth_tracker, scaler._init_scale) == (None, None, 8)
    scaler.scale(torch.ones(()))
    scale, tracker = scaler._check_scale_growth_tracker("update")
    assert scale is scaler._scale is scaler._get_scale_async()
    assert tracker is scaler._growth_tracker
    assert (scale.item(), tracker.item()) == (8, 0)
    factors = scaler._growth_factor, scaler._backoff_factor, scaler._growth_interval
    assert factors == (3, 0.25, 5)


@used_by("diagnosis guard", "_device")
@used_by("guard", "_lazy_init_scale_growth_tracker")
def a_scaler_knows_its_device_and_makes_its_state_there() -> None:
    scaler = torch.amp.GradScaler("cpu", 8.0)
    assert scaler._device == "cpu"
    scaler._lazy_init_scale_growth_tracker(torch.device("cpu"))
    assert scaler._scale is not None
    assert scaler._scale.item() == 8


@used_by("guard investigation precision", "_enabled")
def scaler_and_autocast_know_whether_they_are_on() -> None:
    for on in (True, False):
        assert torch.amp.GradScaler("cpu", enabled=on)._enabled is on
        region: Any = torch.autocast("cpu", torch.bfloat16, enabled=on)
        assert region._enabled is on
        region._enabled = not on
        with region:
            assert torch.is_autocast_enabled("cpu") is not on


@used_by("guard", "_maybe_opt_step")
def a_step_is_taken_through_a_method_that_can_be_replaced() -> None:
    taken = []

    class Scaler(torch.amp.GradScaler):
        def _maybe_opt_step(
            self, optimizer: Any, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any
        ) -> Any:
            taken.append((optimizer_state["stage"], self._found_inf_per_device(optimizer)))

    x = nn.Parameter(torch.ones(2))
    scaler, optimizer = Scaler("cpu", 8.0), torch.optim.SGD([x], lr=1.0)
    scaler.scale(x.sum()).backward()
    scaler.step(optimizer)
    ((stage, found),) = taken
    assert stage is OptState.UNSCALED
    assert [value.item() for value in found.values()] == [0]
    assert x.tolist() == [1, 1]


@used_by("guard investigation", "_found_inf_per_device")
def what_a_scaler_has_found_is_kept_for_each_optimizer() -> None:
    x = nn.Parameter(torch.ones(2))
    scaler, optimizer = torch.amp.GradScaler("cpu", 8.0), torch.optim.SGD([x], lr=1.0)
    scaler.scale(x.sum() * torch.inf).backward()
    scaler.unscale_(optimizer)
    assert [value.item() for value in scaler._found_inf_per_device(optimizer).values()] == [1]


@used_by("guard precision investigation", "_step_supports_amp_scaling")
def a_fused_optimizer_unscales_by_itself() -> None:
    x = [nn.Parameter(torch.ones(2))]
    for fused in (True, False):
        optimizer = torch.optim.AdamW(x, fused=fused)
        assert getattr(optimizer, "_step_supports_amp_scaling", False) is fused


@used_by("guard integrations", "_schedulers")
def composed_schedulers_list_their_parts() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=1.0)
    parts: list[LRScheduler] = [LinearLR(optimizer), LinearLR(optimizer)]
    assert list(SequentialLR(optimizer, parts, [1])._schedulers) == parts
    assert list(ChainedScheduler(parts, optimizer)._schedulers) == parts
    accelerate = pytest.importorskip("accelerate")  # whose list has the same name
    assert "_schedulers" in accelerate.Accelerator.__init__.__code__.co_names


@used_by("integrations", "_defaults", "_results")
def lightning_keeps_logged_values_beside_their_defaults() -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    assert isinstance(inspect.getattr_static(lightning.Trainer, "_results"), property)
    name = "lightning.pytorch.trainer.connectors.logger_connector.result"
    result = pytest.importorskip(name)
    metric = result._ResultMetric(result._Metadata("training_step", "loss"), is_tensor=True)
    assert metric._defaults["value"] == metric.value == 0


# -- modules


@used_by("diagnosis guard", "torch.nn.modules.batchnorm._NormBase")
def norms_with_running_statistics_have_a_common_class() -> None:
    kinds = [nn.BatchNorm1d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.InstanceNorm2d]
    assert all(issubclass(kind, _NormBase) for kind in kinds)
    assert not issubclass(nn.LayerNorm, _NormBase)


@used_by("probing", "torch.nn.modules.conv._ConvNd")
def convolutions_have_a_common_class() -> None:
    assert issubclass(nn.Conv1d, nn.modules.conv._ConvNd)
    assert issubclass(nn.ConvTranspose3d, nn.modules.conv._ConvNd)


@used_by("guard", "_non_persistent_buffers_set")
@used_by("diagnosis guard precision step trials", "_buffers")
@used_by("precision step", "_parameters")
def parameters_and_buffers_are_listed_and_non_persistent_ones_are_known() -> None:
    module = nn.Module()
    module.register_buffer("kept", torch.zeros(1))
    module.register_buffer("cache", torch.zeros(1), persistent=False)
    module.weight = nn.Parameter(torch.zeros(1))
    assert list(module._parameters) == ["weight"]
    assert list(module._buffers) == ["kept", "cache"]
    assert module._non_persistent_buffers_set == {"cache"}


@used_by("precision", "torch._dynamo.utils")
def frames_that_were_compiled_are_counted() -> None:
    counters = torch._dynamo.utils.counters
    before = counters["frames"].total()
    torch.compile(lambda x: x + before, backend="eager")(torch.ones(1))
    assert counters["frames"].total() > before


@used_by("dist", "_orig_mod")
@used_by("diagnosis investigation precision step validation", "torch._dynamo")
@used_by("dist", "torch._dynamo.eval_frame")
def a_compiled_module_holds_the_original() -> None:
    model = nn.Linear(1, 1)
    compiled: Any = torch.compile(model, backend="eager")
    assert isinstance(compiled, torch._dynamo.eval_frame.OptimizedModule)
    assert compiled._orig_mod is model
    assert "_orig_mod.weight" in dict(compiled.named_parameters())
    assert type(compiled).__module__.startswith("torch._dynamo.")
    assert Path(inspect.getfile(type(compiled))).parts[-2:] == ("_dynamo", "eval_frame.py")


@used_by("trials", "torch.nn.Module._call_impl")
def a_call_of_a_module_has_a_frame() -> None:
    codes: list[Any] = []

    class Looking(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            frame: Any = sys._getframe(1)
            codes.append((frame.f_code, frame.f_locals["self"]))
            return x

    model = Looking()
    model(torch.ones(1))
    assert codes == [(nn.Module._call_impl.__code__, model)]


@used_by("diagnosis dist", "_compiled_call_impl")
def a_module_compiled_in_place_is_known() -> None:
    model = nn.Linear(1, 1)
    assert model._compiled_call_impl is None
    model.compile(backend="eager")
    assert model._compiled_call_impl is not None


@used_by("checkpoints", "_metadata")
def a_state_dict_has_the_versions_of_modules() -> None:
    saved: Any = nn.BatchNorm1d(1).state_dict()
    assert saved._metadata[""]["version"] == 2


@used_by("step", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
def wrappers_keep_the_module_under_these_names() -> None:
    assert _common_utils.FSDP_WRAPPED_MODULE in WRAPPERS
    wrapped = checkpoint_wrapper.checkpoint_wrapper(nn.Linear(1, 1))
    assert wrapped._checkpoint_wrapped_module is next(wrapped.children())


# -- the dispatcher and autograd


@used_by("investigation precision tracing", "_schema")
def an_operation_has_a_schema() -> None:
    arguments = torch.ops.aten.add_.Tensor._schema.arguments
    assert [a.name for a in arguments] == ["self", "other", "alpha"]
    assert [a.is_write for a in arguments] == [True, False, False]


@used_by("diagnosis workload", "torch.ops.aten._to_copy")
def a_cast_is_dispatched_as_to_copy() -> None:
    with Calls() as seen:
        torch.zeros(1).half()
    assert seen.calls == [torch.ops.aten.zeros.default, torch.ops.aten._to_copy.default]


@used_by(
    "tracing",
    "torch.ops.aten._scaled_dot_product_flash_attention",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu",
)
def attention_on_a_cpu_has_the_arguments_of_the_one_that_torch_counts() -> None:
    with Calls() as seen:
        x = torch.ones(1, 1, 2, 4)
        nn.functional.scaled_dot_product_attention(x, x, x)
    aten = torch.ops.aten
    assert aten._scaled_dot_product_flash_attention_for_cpu.default in seen.calls
    for operation in (
        aten._scaled_dot_product_flash_attention_for_cpu,
        aten._scaled_dot_product_flash_attention,
    ):
        names = [argument.name for argument in operation.default._schema.arguments]
        assert names[:3] == ["query", "key", "value"]


@used_by(
    "tracing workload",
    "torch.utils._python_dispatch.TorchDispatchMode",
)
def a_mode_sees_operations_below_autocast() -> None:
    with Calls() as seen, torch.autocast("cpu", torch.bfloat16):
        torch.ones(2, 2) @ torch.ones(2, 2)
    assert seen.calls.count(torch.ops.aten._to_copy.default) == 2
    assert torch.ops.aten.mm.default in seen.calls


class Calls(_python_dispatch.TorchDispatchMode):
    """Lists the operations that reach the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(func)
        return func(*args, **(kwargs or {}))


@used_by("guard workload", "torch.utils._python_dispatch.is_traceable_wrapper_subclass")
def a_tensor_around_others_is_recognised() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged)
    tensors = [nested, torch.ones(2), nn.Parameter(torch.ones(2))]
    found = list(map(_python_dispatch.is_traceable_wrapper_subclass, tensors))
    assert found == [True, False, False]


@used_by("validation", "torch.utils._pytree.tree_flatten")
@used_by("investigation tracing", "torch.utils._pytree.tree_leaves")
@used_by("diagnosis tracing", "torch.utils._pytree.tree_map_only")
@used_by("diagnosis replaying", "torch.utils._pytree.tree_map")
def trees_are_walked() -> None:
    tree = {"b": [1, (2.0, None)], "a": 3}
    assert _pytree.tree_flatten(tree)[0] == _pytree.tree_leaves(tree) == [1, 2.0, None, 3]
    assert _pytree.tree_map(str, tree) == {"b": ["1", ("2.0", "None")], "a": "3"}
    assert _pytree.tree_map_only(int, lambda x: -x, tree) == {"b": [-1, (2.0, None)], "a": -3}


@used_by("precision tracing", "torch._C.DispatchKey", "torch._C.DispatchKeySet")
@used_by("precision", "torch._C._dispatch_keyset_full_after")
def keys_above_autocast_can_be_cut_off() -> None:
    key = torch._C.DispatchKey
    keys = torch._C.DispatchKeySet(key.AutocastCPU)
    for more in (key.AutogradCPU, key.PythonTLSSnapshot, key.PythonDispatcher):
        keys = keys.add(more)
    rest = keys & torch._C._dispatch_keyset_full_after(key.AutocastCPU)
    assert rest.has(key.AutogradCPU)
    assert rest.has(key.PythonDispatcher)  # the one that torch keeps, for those who redispatch
    assert not rest.has(key.AutocastCPU)
    assert not rest.has(key.PythonTLSSnapshot)


@used_by("tracing", "torch._decomp.decomposition_table")
def a_backward_operation_decomposes_into_differentiable_ones() -> None:
    operation = torch.ops.aten.silu_backward.default
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    one = torch.ones_like(x)
    made = decomposition_table[operation](one, x)
    assert torch.allclose(made, operation(one, x.detach()))
    made.sum().backward()
    assert x.grad is not None


@used_by("tracing", "torch.utils._mode_utils.no_dispatch")
def a_block_can_run_below_all_modes() -> None:
    with Calls() as outer, Calls() as inner:
        with no_dispatch():
            torch.ones(2) + 1
        torch.ones(2) * 2
    assert torch.ops.aten.add.Tensor not in [*outer.calls, *inner.calls]
    assert torch.ops.aten.mul.Tensor in inner.calls


@used_by("precision tracing", "torch._C._ExcludeDispatchKeyGuard")
def a_key_can_be_excluded() -> None:
    x = torch.ones(2, 2)
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    with torch.autocast("cpu", torch.bfloat16):
        assert (x @ x).dtype is torch.bfloat16
        with torch._C._ExcludeDispatchKeyGuard(keys):
            assert (x @ x).dtype is torch.float32


@used_by("precision", "torch._C._dispatch_get_registrations_for_dispatch_key")
def kernels_of_a_key_are_listed() -> None:
    known = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU")
    assert {"aten::linear", "aten::bmm"} <= set(known)


@used_by("precision", "torch._C._is_key_in_tls", "torch._C._get_obj_in_tls")
def a_backward_pass_takes_the_context_of_its_caller_along() -> None:
    marked, seen = ContextVar("marked", default=False), []
    marked.set(True)
    x = torch.ones(2, requires_grad=True)

    def look(_: Tensor) -> None:
        known = torch._C._is_key_in_tls("context")
        seen.append(known and torch._C._get_obj_in_tls("context").get(marked))

    x.register_hook(look)
    x.sum().backward()
    assert seen == [torch.__version__ >= "2.12"]  # a TorchVersion: compares as one


@used_by("precision", "torch.utils.checkpoint.DefaultDeviceType._default_device_type")
@used_by("precision", "torch.utils.checkpoint._CheckpointFrame")
def a_checkpointed_block_is_one_frame_that_its_graph_holds() -> None:
    assert "_default_device_type" in vars(DefaultDeviceType)
    frames = []
    init: Any = _CheckpointFrame.__init__

    def counted(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        frames.append(weakref.ref(self))

    _CheckpointFrame.__init__ = counted  # type: ignore[method-assign]
    try:
        out = checkpoint(torch.sin, torch.ones(2, requires_grad=True), use_reentrant=False)
    finally:
        _CheckpointFrame.__init__ = init  # type: ignore[method-assign]
    assert frames[0]() is not None
    out.sum().backward()
    del out
    gc.collect()
    assert [frame() for frame in frames] == [None]


@used_by("investigation", "_saved_other")
def a_division_keeps_its_divisor() -> None:
    node: Any = (torch.ones(1, requires_grad=True) / 8).grad_fn
    assert (node.name(), float(node._saved_other)) == ("DivBackward0", 8.0)


@used_by("precision tracing", "torch._C._current_graph_task_id")
@used_by("tracing", "torch._C._current_autograd_node", "torch._C._autograd._get_sequence_nr")
@used_by("tracing", "_sequence_nr")
def a_backward_pass_knows_the_node_that_it_runs() -> None:
    seen: list[Any] = []

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            node: Any = torch._C._current_autograd_node()
            seen.append((node._sequence_nr(), node.name(), torch._C._current_graph_task_id()))
            return grads[0]

    x = torch.ones(2, requires_grad=True)
    before = torch._C._autograd._get_sequence_nr()
    y: Tensor = Watched.apply(x)  # type: ignore[no-untyped-call]
    assert torch._C._current_autograd_node() is None
    assert torch._C._current_graph_task_id() == -1
    y.sum().backward()
    ((number, name, task),) = seen
    assert (number, name) == (before, "WatchedBackward")
    assert task >= 0


@used_by("investigation tracing", "_engine_run_backward")
def every_backward_pass_runs_through_one_function() -> None:
    seen: list[bool] = []
    original = torch.autograd.graph._engine_run_backward

    def run(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(bool(kwargs.get("accumulate_grad")))
        return original(outputs, *args, **kwargs)

    for module in (torch.autograd.graph, torch.autograd):
        module._engine_run_backward = run  # type: ignore[attr-defined]
    try:
        x = torch.ones(2, requires_grad=True)
        x.sum().backward()
        torch.autograd.backward(x.sum())
        torch.autograd.grad(x.sum(), x)
    finally:
        for module in (torch.autograd.graph, torch.autograd):
            module._engine_run_backward = original  # type: ignore[attr-defined]
    assert seen == [True, True, False]


@used_by("investigation", "torch._C._functorch.peek_interpreter_stack")
def a_function_transform_has_an_interpreter() -> None:
    stack: list[Any] = []

    def note(x: Tensor) -> Tensor:
        stack.append(torch._C._functorch.peek_interpreter_stack())
        return x.sum()

    torch.func.grad(note)(torch.ones(2))
    assert stack[0] is not None
    assert torch._C._functorch.peek_interpreter_stack() is None


@used_by("investigation replaying", "torch.autograd.graph._engine_run_backward")
def the_engine_can_be_called_and_found_on_the_stack() -> None:
    run = torch.autograd.graph._engine_run_backward
    x = torch.ones(2, requires_grad=True)
    codes: list[Any] = []
    x.register_hook(lambda _: codes.extend(f.frame.f_code for f in inspect.stack(0)))
    loss = x.sum()
    run(
        (loss,),
        (torch.ones_like(loss),),
        False,
        False,
        (),
        allow_unreachable=True,
        accumulate_grad=True,
    )
    assert x.grad is not None
    assert run.__code__ in codes


# -- several ranks


@contextmanager
def one_rank() -> Iterator[None]:
    """Make a group of one, in which a DDP model must be deleted.

    As the last owner of the group it would wait for the group's threads while it holds the GIL, which these
    may need: the process hangs, now and then.
    """
    dist.init_process_group(
        "gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


@used_by("dist", "_join_config")
def ddp_knows_whether_it_joins() -> None:
    with one_rank():
        model = DistributedDataParallel(nn.Linear(1, 1))
        assert not model._join_config.enable
        with model.join():
            assert model._join_config.enable
        del model


@used_by("dist", "_has_rebuilt_buckets", "_reset_state")
def ddp_can_begin_anew_after_a_backward_pass_that_raised() -> None:
    with one_rank():
        model = DistributedDataParallel(nn.Linear(2, 1))
        model(torch.ones(1, 2)).sum().backward()
        assert isinstance(model._has_rebuilt_buckets, bool)
        model._has_rebuilt_buckets = False
        model.reducer._reset_state()
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
        del model


@used_by("dist", "_get_root_mesh", "torch.distributed.device_mesh._mesh_resources")
def a_submesh_knows_its_root() -> None:
    with one_rank():
        mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("a", "b"))
        find = getattr(mesh["b"], "_get_root_mesh", None)  # else it is torch 2.9
        assert (find() if find else _mesh_resources.get_root_mesh(mesh["b"])) == mesh


@used_by(
    "dist",
    "_get_fsdp_state",
    "_fsdp_param_group",
    "_fsdp_param_groups",
    "_mp_policy",
    "_init_mp_dtypes",
    "_is_root",
    "_unsharded_param",
)
def fsdp_keeps_its_policy_and_its_gathered_parameters_here() -> None:
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.bfloat16)
    with one_rank():
        mesh = init_device_mesh("cpu", (1,))
        model: Any = fully_shard(nn.Linear(2, 2), mesh=mesh, mp_policy=half)
        assert model(torch.ones(1, 2)).dtype is torch.bfloat16
        state = model._get_fsdp_state()
        assert state._mp_policy == half
        assert state._is_root
        groups = getattr(state, "_fsdp_param_groups", None)
        (group,) = [state._fsdp_param_group] if groups is None else groups
        for parameter in group.fsdp_params:
            assert parameter.mp_policy == half
            assert parameter.all_gather_outputs
            assert parameter.unsharded_accumulated_grad is None
            assert parameter._unsharded_param.dtype is torch.bfloat16
        assert not inspect.signature(group._init_mp_dtypes).parameters


# -- the table is complete


@each("name", sorted(TABLE))
def test_a_private_name_is_what_it_was(name: str) -> None:
    _, check = TABLE[name]
    check()


def test_every_private_name_has_an_entry() -> None:
    found = private_names(PACKAGE)
    used = {name: packages for name, packages in found.items() if name not in NOT_OF_TORCH}
    for name in WRAPPERS:
        if name in TABLE:
            used.setdefault(name, {"step"})
    entered = {name: packages for name, (packages, _) in TABLE.items()}
    assert used == entered


def test_the_search_finds_each_form(tmp_path: Path) -> None:
    package = tmp_path / "halfguard"
    package.mkdir()
    (package / "package.py").write_text(
        "import torch._dynamo\n"
        "from torch import nn\n"
        "from torch.utils._pytree import tree_map\n"
        "_own = torch._foreach_add_\n"
        "x = nn.modules.conv._ConvNd.forward\n"
        "y = getattr(x, '_from_a_string', x._own)\n"
        "z = 'torch._inductor.config'\n"
        "x._somebody_elses = torch.ops.aten._to_copy.default\n"
    )
    assert set(private_names(package)) == {
        "torch._dynamo",
        "torch.utils._pytree.tree_map",
        "torch._foreach_add_",
        "torch.nn.modules.conv._ConvNd",
        "_from_a_string",
        "torch._inductor.config",
        "_somebody_elses",
        "torch.ops.aten._to_copy",
    }
