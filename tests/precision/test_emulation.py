"""CUDA's autocast on a CPU: every documented operation, whole models, and everything that nests."""

from __future__ import annotations

import copy
import gc
import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import DefaultDeviceType, _CheckpointFrame, checkpoint

from halfguard.autocast_ops import RULES
from halfguard.errors import UsageError
from halfguard.precision.emulation import EmulationHold, autocast_like_cuda, emulate_autocast
from halfguard.precision.modes import without_autocast
from halfguard.precision_names import Precision
from tests.precision import autocast_examples as examples
from tests.support import standin
from tests.support.cases import each_case
from tests.support.devices import chosen_device
from tests.support.pairs import parametrize_pairs
from tests.support.programs import captured

HALF, FULL, DOUBLE = torch.float16, torch.float32, torch.float64
Call = Callable[..., Tensor]
NO_KERNEL = {"LSTMCell", "GRUCell", "nn.LSTM", "nn.GRU"}  # on the stand-in


@pytest.fixture(autouse=True)
def same_random_numbers(seed: Callable[[int], None]) -> None:
    """Some of the examples build modules."""


# On a CPU the rules are emulated; on the stand-in they are those that torch's own macros register.
def like_cuda(precision: Precision = Precision.FP16_MIXED) -> AbstractContextManager[Any]:
    return autocast_like_cuda(precision, chosen_device())


def calls_of(*lists: Mapping[str, Call]) -> Iterator[tuple[str, Call]]:
    """Yield the operations of these lists that the device of the test has."""
    on_standin = chosen_device().type == standin.NAME
    for name, call in itertools.chain.from_iterable(calls.items() for calls in lists):
        if not on_standin or name not in NO_KERNEL:
            yield name, call


@pytest.mark.on_standin
@pytest.mark.usefixtures("device")
def test_runs_in_float16() -> None:
    with each_case() as case:
        for name, call in calls_of(examples.TO_FLOAT16, examples.ALSO_TO_FLOAT16):
            with case(name):
                with like_cuda():
                    assert call(FULL).dtype is HALF
                with like_cuda(Precision.BF16_MIXED):
                    assert call(FULL).dtype is torch.bfloat16
                assert call(FULL).dtype is FULL


@pytest.mark.on_standin
@pytest.mark.usefixtures("device")
def test_runs_in_float32() -> None:
    with each_case() as case:
        for name, call in calls_of(examples.TO_FLOAT32, examples.ALSO_TO_FLOAT32):
            with case(name), like_cuda():
                assert call(HALF).dtype is FULL
                assert call(FULL).dtype is FULL
                assert call(DOUBLE).dtype is DOUBLE  # not eligible


@pytest.mark.on_standin
@pytest.mark.usefixtures("device")
def test_runs_in_the_widest() -> None:
    widest = {(HALF, HALF): HALF, (HALF, FULL): FULL, (FULL, HALF): FULL, (FULL, FULL): FULL}
    with each_case() as case:
        for name, call in calls_of(examples.WIDEST, examples.ALSO_WIDEST):
            for dtypes, expected in widest.items():
                with case((name, *dtypes)), like_cuda():
                    assert call(*dtypes).dtype is expected


@pytest.mark.on_standin
@pytest.mark.usefixtures("device")
def test_is_banned() -> None:
    with each_case() as case:
        for name, call in calls_of(examples.BANNED):
            with case(name), like_cuda(), pytest.raises(RuntimeError, match="unsafe to autocast"):
                call(torch.rand(4), torch.rand(4))


def test_the_rules_are_those_that_this_torch_registers_for_cuda() -> None:
    registered = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    names = {name.removeprefix("aten::") for name in registered if name.startswith("aten::")}
    if not torch.__version__.startswith("2.13"):
        pytest.skip("the lists are those of torch 2.13")
    # A CUDA build adds the kernels of cuDNN's recurrent layers.
    assert {name for name in names if not name.startswith("_cudnn")} == set(RULES)


class Dtypes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every operation beneath autocast: its name, the dtypes that went in, the one that came out."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[str, list[torch.dtype], torch.dtype]] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        first = out[0] if isinstance(out, tuple | list) else out
        floats = [a for a in args if isinstance(a, Tensor) and a.is_floating_point()]
        if isinstance(first, Tensor) and first.is_floating_point() and floats:
            name = func.overloadpacket.__name__
            self.seen.append((name, [a.dtype for a in floats], first.dtype))
        return out


# What the page says of the operations that these models call, by the names of the kernels beneath.
DOCUMENTED = {
    **dict.fromkeys(("addmm", "mm", "bmm", "baddbmm", "convolution", "_prelu_kernel"), HALF),
    "_scaled_dot_product_flash_attention_for_cpu": HALF,
    **dict.fromkeys(("native_layer_norm", "native_group_norm", "_softmax", "_log_softmax"), FULL),
    **dict.fromkeys(("nll_loss_forward", "mse_loss", "sum", "exp", "pow", "rsqrt", "log"), FULL),
}


class Attention(nn.Module):
    """Scores by hand, a softmax, a hand-written norm and scaled_dot_product_attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.gain = nn.Linear(8, 24), nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        by_hand = torch.softmax(q @ k.transpose(1, 2) / 8**0.5, -1) @ v
        fused = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        scale = torch.rsqrt(by_hand.pow(2).mean(-1, keepdim=True) + 1e-6)
        normed: Tensor = by_hand * scale * self.gain
        return normed + fused


def transformer() -> tuple[nn.Module, Tensor]:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, activation="gelu")
    return nn.Sequential(layer, nn.Linear(8, 8)), torch.randn(2, 4, 8)


def conv_net() -> tuple[nn.Module, Tensor]:
    body = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.PReLU(), nn.GroupNorm(2, 4))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 8))
    return nn.Sequential(body, nn.ReLU(), head), torch.randn(2, 2, 8, 8)


def attention() -> tuple[nn.Module, Tensor]:
    return Attention(), torch.randn(2, 4, 8)


@pytest.mark.parametrize(
    ("make", "must_meet"),
    [
        (transformer, {"addmm", "native_layer_norm", "gelu", "_log_softmax", "add"}),
        (conv_net, {"convolution", "native_batch_norm", "native_group_norm", "addmm"}),
        (attention, {"bmm", "_softmax", "_scaled_dot_product_flash_attention_for_cpu", "pow"}),
    ],
)
def test_every_operation_of_a_model_has_the_documented_dtype(
    make: Callable[[], tuple[nn.Module, Tensor]], must_meet: set[str]
) -> None:
    model, x = make()
    with Dtypes() as recorded, emulate_autocast("cuda"):
        out = model(x)
        target = torch.zeros(out[..., 0].numel(), dtype=torch.int64)
        loss = F.nll_loss(F.log_softmax(out.flatten(0, -2), -1), target)
    assert loss.dtype is FULL
    names = {name for name, _, _ in recorded.seen}
    assert must_meet <= names, f"not met: {must_meet - names}"
    for name, inputs, output in recorded.seen:
        if name in ("_to_copy", "native_batch_norm"):  # a cast; half values, float32 statistics
            continue
        natural = inputs[0]
        for dtype in inputs:
            natural = torch.promote_types(natural, dtype)
        assert output is DOCUMENTED.get(name, natural), (name, inputs, output)


def test_cross_entropy_returns_float32_but_rounds_its_log_softmax_to_half() -> None:
    # In C++ cross_entropy names the dtype of its input when it calls log_softmax, on every device, and
    # autocast respects a dtype that is named. The page promises the dtype of the result.
    logits, target = torch.randn(4, 8).half(), torch.zeros(4, dtype=torch.int64)
    with Dtypes() as recorded, emulate_autocast("cuda"):
        assert F.cross_entropy(logits, target).dtype is FULL
    assert ("_log_softmax", [HALF], HALF) in recorded.seen


def test_gradients_go_through_the_casts_to_float32_parameters() -> None:
    model, x = transformer()
    with emulate_autocast("cuda"):
        loss = model(x).sum()
    loss.backward()
    assert all(p.grad is not None and p.grad.dtype is FULL for p in model.parameters())


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_disabled_region_is_float32_and_may_be_enabled_again(device: str) -> None:
    linear, x = nn.Linear(4, 4), torch.randn(2, 4)
    with emulate_autocast("cuda"):
        with torch.autocast(device, enabled=False):
            assert linear(x).dtype is FULL
            assert torch.softmax(x.half(), -1).dtype is HALF
            with emulate_autocast("cuda"):
                assert linear(x).dtype is HALF
        assert linear(x).dtype is HALF
    assert linear(x).dtype is FULL


def test_the_users_own_autocast_for_cuda_works_inside() -> None:
    linear, x = nn.Linear(4, 4), torch.randn(2, 4)
    with emulate_autocast("cuda"):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert linear(x).dtype is torch.bfloat16
        with torch.autocast("cuda", enabled=False), torch.autocast("cuda"):
            assert linear(x).dtype is HALF
            assert torch.softmax(linear(x), -1).dtype is FULL


def test_afterwards_everything_is_as_before() -> None:
    x = torch.randn(2, 4).half()
    with pytest.raises(ZeroDivisionError), emulate_autocast("cuda"):
        raise ZeroDivisionError
    assert not torch.is_autocast_enabled("cuda")
    assert not torch.is_autocast_enabled("cpu")
    with torch.autocast("cpu", dtype=HALF):  # the CPU's own rules: half, and no ban
        assert torch.softmax(x, -1).dtype is HALF
        assert F.mse_loss(x, x).dtype is FULL
        assert F.binary_cross_entropy(x.sigmoid(), x.sigmoid()).dtype is FULL
    if not torch.cuda.is_available():
        with pytest.warns(UserWarning, match="CUDA is not available"):
            torch.autocast("cuda")


METHODS = ("__init__", "__enter__", "__exit__")
CPU_KERNELS = set(torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU"))


def traces_in_the_process() -> list[Any]:
    """Return what an emulation adds: kernels, patched methods, and the device of checkpointing."""
    kernels = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU")
    in_python = [name for name in CPU_KERNELS if ".py:" in _autocast_entry(name)]
    methods = [vars(torch.autocast)[name] for name in METHODS]
    added = [vars(owner).get("__init__") for owner in (BackwardCFunction, _CheckpointFrame)]
    checkpointed = DefaultDeviceType._default_device_type
    return [set(kernels), in_python, methods, added, checkpointed]


def _autocast_entry(name: str) -> str:
    """Return where the kernel comes from that this operation has for the CPU's autocast."""
    table = torch._C._dispatch_dump(name).splitlines()
    return next(line for line in table if line.startswith("AutocastCPU"))


@pytest.fixture
def unchanged() -> Iterator[None]:
    """Fail if the test leaves anything of an emulation in the process."""
    before = traces_in_the_process()
    yield
    gc.collect()
    assert traces_in_the_process() == before


@pytest.mark.usefixtures("unchanged")
def test_a_region_adds_kernels_and_patches_and_removes_them() -> None:
    before = traces_in_the_process()
    assert before[0] == CPU_KERNELS
    assert before[1] == []
    DefaultDeviceType.set_device_type("xpu")
    try:
        for _ in range(2):
            with emulate_autocast("cuda"):
                inside = traces_in_the_process()
                assert len(inside[0]) > len(before[0])
                assert len(inside[1]) > 100
                with emulate_autocast("cuda"):
                    assert traces_in_the_process() == inside
                assert traces_in_the_process() == inside
            after = traces_in_the_process()
            assert after[-1] == "xpu"
            assert after[:-1] == before[:-1]
    finally:
        DefaultDeviceType._default_device_type = before[-1]


@pytest.mark.usefixtures("unchanged")
def test_regions_that_overlap_in_threads_end_with_the_last() -> None:
    linear, x = nn.Linear(4, 4), torch.randn(2, 4)
    entered, leave = threading.Event(), threading.Event()
    seen: list[torch.dtype] = []

    def other() -> None:
        with emulate_autocast("cuda"):
            entered.set()
            assert leave.wait(60)
            seen.append(torch.softmax(linear(x), -1).dtype)

    def bare() -> None:
        seen.append(linear(x).dtype)

    thread, without = threading.Thread(target=other), threading.Thread(target=bare)
    with emulate_autocast("cuda"):
        thread.start()
        assert entered.wait(60)
        without.start()
        without.join()
    assert seen == [FULL]  # a thread outside of both regions
    inside = traces_in_the_process()
    with torch.autocast("cpu", dtype=HALF):  # this thread emulates no more
        assert torch.softmax(linear(x), -1).dtype is HALF
    leave.set()
    thread.join()
    assert seen == [FULL, FULL]
    assert traces_in_the_process() != inside


@pytest.mark.usefixtures("unchanged")
def test_copies_of_a_hold_hold_for_themselves() -> None:
    hold = EmulationHold()
    copies = [copy.copy(hold), copy.deepcopy(hold)]
    inside = traces_in_the_process()
    del hold, copies[0]
    assert traces_in_the_process() == inside
    del copies[0]
    assert traces_in_the_process() != inside


@pytest.mark.usefixtures("unchanged")
def test_a_first_region_inside_without_autocast_leaves_torch_autocast_whole() -> None:
    linear, x = nn.Linear(4, 4), torch.randn(2, 4)
    with without_autocast():
        with emulate_autocast("cuda"), torch.autocast("cuda"):
            assert linear(x).dtype is FULL
        with torch.autocast("cpu", dtype=HALF):
            assert linear(x).dtype is FULL
    with emulate_autocast("cuda"):
        with torch.autocast("cuda", enabled=False):
            assert linear(x).dtype is FULL
        with without_autocast(), torch.autocast("cuda"):
            assert linear(x).dtype is FULL
        assert linear(x).dtype is HALF
    with torch.autocast("cuda", enabled=False):
        assert linear(x).dtype is FULL


class ProductUnderAutocast(torch.autograd.Function):
    """A function whose backward pass restores the autocast of its forward pass, as custom_bwd does."""

    dtypes: ClassVar[list[torch.dtype]] = []

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        ProductUnderAutocast.dtypes.append((grad @ weight.T).dtype)
        return grad @ weight.T, x.T @ grad


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("reentrant", [True, False, None], ids=["reentrant", "frame", "function"])
def test_what_recomputes_after_the_region_keeps_it_until_its_graph_is_gone(
    reentrant: bool | None,
) -> None:
    product = ProductUnderAutocast.apply
    weight, x = torch.randn(4, 4, requires_grad=True), torch.randn(2, 4, requires_grad=True)
    seen = ProductUnderAutocast.dtypes
    seen.clear()

    def block(x: Tensor) -> Tensor:
        seen.append((x @ weight).dtype)
        return (x @ weight) * 2

    before = traces_in_the_process()
    with emulate_autocast("cuda"):
        if reentrant is None:
            loss = product(x, weight).sum()  # type: ignore[no-untyped-call]
        else:
            loss = checkpoint(block, x, use_reentrant=reentrant).sum()
    assert traces_in_the_process() != before
    loss.backward()
    assert seen == [HALF] * (1 if reentrant is None else 2)
    del loss
    gc.collect()
    assert traces_in_the_process() == before


@parametrize_pairs(nested=[True, False], inside=[True, False], reentrant=[True, False])
def test_checkpointing_recomputes_in_the_same_dtypes(
    reentrant: bool, inside: bool, nested: bool
) -> None:
    linear, seen = nn.Linear(4, 4), []

    def block(x: Tensor) -> Tensor:
        low: Tensor = linear(x)
        high = torch.softmax(low, -1)
        with torch.autocast("cuda", enabled=False):
            island: Tensor = linear(high)
        seen.append((low.dtype, high.dtype, island.dtype))
        return low * island

    def outer(x: Tensor) -> Tensor:
        return checkpoint(block, linear(x), use_reentrant=False) if nested else block(x)

    def gradient(run: Callable[[Tensor], Tensor]) -> Tensor:
        linear.zero_grad()
        x = torch.ones(2, 4, requires_grad=True)
        with emulate_autocast("cuda"):
            loss = run(x).sum()
            if inside:
                loss.backward()  # type: ignore[no-untyped-call]
        if not inside:
            loss.backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        return x.grad

    plain = gradient(lambda x: block(linear(x)) if nested else block(x))
    again = gradient(lambda x: checkpoint(outer, x, use_reentrant=reentrant))
    assert set(seen) == {(HALF, FULL, FULL)}
    assert len(seen) >= 3
    assert torch.equal(plain, again)


def test_checkpointing_under_the_cpus_own_autocast_is_unchanged() -> None:
    with emulate_autocast("cuda"):
        pass
    linear, seen = nn.Linear(4, 4), []

    def block(x: Tensor) -> Tensor:
        out = torch.softmax(linear(x), -1)
        seen.append(out.dtype)
        return out * out

    x = torch.ones(2, 4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = checkpoint(block, x, use_reentrant=False)
    out.sum().backward()
    assert seen == [torch.bfloat16] * 2


def test_in_place_and_out_variants_are_not_cast() -> None:
    a, b = torch.ones(2, 2), torch.ones(2, 2)
    with emulate_autocast("cuda"):
        assert a.clone().addmm_(b, b).dtype is FULL
        assert torch.mm(a, b, out=torch.empty(2, 2)).dtype is FULL
        assert a.half().exp_().dtype is HALF
        assert a.half().sum(dtype=HALF).dtype is HALF  # an explicit dtype is respected


def test_one_cast_of_a_weight_serves_all_its_uses() -> None:
    weight = nn.Parameter(torch.full((1, 1), 1.0))
    x = torch.full((1, 1), 40000.0)
    with emulate_autocast("cuda"):
        loss = F.linear(x, weight) + F.linear(x, weight)
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad.isinf().all()  # 80000, summed in half where both uses meet
    weight.grad.zero_()
    with emulate_autocast("cuda"):
        first = F.linear(x, weight)
    with emulate_autocast("cuda"):
        second = F.linear(x, weight)
    (first.float() + second.float()).sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad.item() == 80000.0  # two regions, two casts, summed in float32


def test_a_cast_made_without_gradients_does_not_serve_later() -> None:
    linear, x = nn.Linear(2, 2), torch.ones(1, 2)
    with emulate_autocast("cuda"):
        with torch.no_grad():
            linear(x)
        assert linear(x).requires_grad
        linear(x).sum().backward()
    assert linear.weight.grad is not None


def test_a_region_inside_another_leaves_no_cast_behind() -> None:
    weight, x = nn.Parameter(torch.ones(1, 1)), torch.ones(1, 1)
    seen = []
    for _ in range(3):
        with torch.autocast("cpu", dtype=torch.float16), emulate_autocast("cuda"):
            seen.append(F.linear(x, weight).item())
        with torch.no_grad():
            weight.add_(1)
    assert seen == [1.0, 2.0, 3.0]


def test_a_product_accumulates_in_float32_and_overflows_when_it_is_rounded() -> None:
    a, b = torch.full((1, 4), 60000.0), torch.tensor([[1.0], [1.0], [-1.0], [-1.0]])
    with emulate_autocast("cuda"):
        assert (a @ b).item() == 0.0
        assert (a @ b.abs()).isinf().all()


def test_what_cannot_be_emulated_is_refused() -> None:
    with pytest.raises(UsageError, match="only 'cuda' can be emulated"), emulate_autocast("xpu"):
        pass
    with pytest.raises(UsageError, match="16-bit"), emulate_autocast("cuda", dtype=DOUBLE):
        pass


class Normalised(nn.Module):
    """Operations that CUDA's autocast has a rule for and the CPU's has none."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.log_softmax(self.last(self.norm(self.first(x)).exp()), -1)


def compiled_under_cpu_autocast(backend: str) -> list[Tensor]:
    """Return outputs and gradients, compiled anew."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model = Normalised()
    compiled = torch.compile(model, backend=backend)
    with torch.autocast("cpu", torch.bfloat16):
        output: Tensor = compiled(torch.randn(4, 8))
    output.float().square().sum().backward()
    return [output.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


_COMPILED_BEFORE_AND_AFTER = """
import sys
import torch
from halfguard.precision.emulation import autocast_like_cuda, emulate_autocast
from halfguard.precision_names import Precision
from tests.precision.test_emulation import Normalised, compiled_under_cpu_autocast

before = compiled_under_cpu_autocast(sys.argv[1])
with emulate_autocast("cuda"):
    Normalised()(torch.ones(1, 8))
after = compiled_under_cpu_autocast(sys.argv[1])
print(len(after), all(map(torch.equal, before, after)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_region_does_not_change_what_torch_compile_makes_later(backend: str) -> None:
    """A compile cache would return what was compiled before the region, so it is off."""
    command = (sys.executable, "-W", "ignore", "-c", _COMPILED_BEFORE_AND_AFTER, backend)
    ran = captured(*command, env={"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"})
    assert ran.stdout.split() == ["7", "True"], ran.stderr
