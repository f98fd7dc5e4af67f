"""An island computes in FP32 wherever it stands, and leaves no other trace on the model."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import checkpoint

from halfguard.errors import RecordError, UsageError
from halfguard.precision.emulation import emulate_autocast
from halfguard.precision.islands import (
    fp32_island,
    is_fp32_island,
    is_island,
    remove_island,
)
from halfguard.precision.upcast import cast_to_fp32
from halfguard.records.plan import Island, IslandKind, PrecisionPlan, ScaleRange
from halfguard.trials.plans import apply_plan
from tests.support.cases import each
from tests.support.devices import chosen_device
from tests.support.pairs import parametrize_pairs

pytestmark = pytest.mark.usefixtures("device")

CONTEXTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "cpu fp16": lambda: torch.autocast(chosen_device().type, torch.float16),
    "cpu bf16": lambda: torch.autocast(chosen_device().type, torch.bfloat16),
    "cuda emulated": lambda: emulate_autocast("cuda"),
    "none": lambda: torch.autocast(chosen_device().type, enabled=False),
}


class Square(nn.Module):
    """Notes the dtypes that it sees; overflows half at 256."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.seen: list[torch.dtype] = []

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.linear(x)
        self.seen += [x.dtype, h.dtype]
        return h * h


class Net(nn.Module):
    def __init__(self, *, reentrant: bool | None = None) -> None:
        super().__init__()
        self.first, self.square, self.last = nn.Linear(4, 4), Square(), nn.Linear(4, 2)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.reentrant is None:
            h = self.square(h)
        else:
            h = checkpoint(self.square, h, use_reentrant=self.reentrant)
        return self.last(h)


@pytest.mark.on_standin
@pytest.mark.parametrize("context", CONTEXTS)
def test_inside_everything_is_float32_and_outside_nothing_changes(
    context: str, seed: object
) -> None:
    net = Net()
    fp32_island(net.square)
    with CONTEXTS[context]():
        h = net.first(torch.randn(3, 4))
        out = net.square(h)
        after = net.last(out)
    assert net.square.seen == [torch.float32, torch.float32]
    assert out.dtype is torch.float32
    assert after.dtype is h.dtype  # autocast is on again


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("context", ["cpu fp16", "cuda emulated"])
def test_a_checkpointed_island_is_one_when_it_is_computed_again(
    context: str, reentrant: bool, seed: object
) -> None:
    net = Net(reentrant=reentrant)
    fp32_island(net.square)
    plain = copy.deepcopy(net)
    plain.reentrant = None
    x = torch.randn(3, 4)
    for model in (net, plain):
        with CONTEXTS[context]():
            loss = model(x).float().sum()
        loss.backward()
    assert set(net.square.seen) == {torch.float32}
    for ours, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert torch.equal(ours.grad, theirs.grad)


def test_it_is_idempotent_removable_and_leaves_the_state_alone(seed: object) -> None:
    net = Net()
    keys, x = list(net.state_dict()), torch.randn(2, 4)
    assert fp32_island(fp32_island(net.square)) is net.square
    assert is_island(net.square)
    assert list(net.state_dict()) == keys
    net.square(x.half())
    assert net.square.seen == [torch.float32, torch.float32]
    remove_island(net.square)
    assert not is_island(net.square)
    assert "forward" not in vars(net.square)
    remove_island(net.square)
    with torch.autocast(chosen_device().type, torch.float16):
        assert net.square(x).dtype is torch.float16


def test_a_forward_that_was_replaced_before_is_put_back(seed: object) -> None:
    module = nn.Linear(2, 2)
    replaced: Callable[[Tensor], Tensor] = lambda x: x + 1  # noqa: E731
    module.forward = replaced  # type: ignore[method-assign, assignment]
    fp32_island(module)
    assert module(torch.zeros(1, dtype=torch.float16)).dtype is torch.float32
    remove_island(module)
    assert module.forward is replaced


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of dynamo itself
@pytest.mark.parametrize(("kind", "path"), [("fp32", "*"), ("fp32", "*.0"), ("rescaled", "*.0")])
def test_compiled_blocks_with_islands_share_their_graph(
    kind: IslandKind, path: str, seed: object
) -> None:
    torch.compiler.reset()
    counters: Any = torch._dynamo.utils.counters
    counters.clear()
    model: Any = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(12)))
    apply_plan(model, PrecisionPlan(islands=(Island(module=path, kind=kind),)))
    for block in model:
        block.compile(backend="eager", fullgraph=True)
    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        model(torch.randn(2, 8))
    assert counters["stats"]["unique_graphs"] <= 2  # inputs in FP32, and in half
    torch.compiler.reset()


@pytest.mark.parametrize("kind", ["fp32", "rescaled"])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_and_an_unpickled_model_are_islands_of_their_own(
    kind: IslandKind, copied: Callable[[nn.Module], nn.Module], seed: object
) -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    apply_plan(model, PrecisionPlan(islands=(Island(module="0", kind=kind),)))
    other = copied(model)
    with torch.no_grad():
        model.get_parameter("0.weight").zero_()
    with torch.autocast("cpu", torch.float16):
        out = other(torch.randn(2, 8))
    assert out.dtype is torch.float32
    assert out.abs().sum() > 1
    remove_island(other.get_submodule("0"))
    assert vars(other.get_submodule("0")).keys() == vars(nn.Linear(8, 8)).keys()


def test_torch_compile_goes_through_an_island_without_a_break(seed: object) -> None:
    net = Net()
    fp32_island(net.square.linear)
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    x = torch.randn(3, 4)
    with torch.autocast(chosen_device().type, torch.float16):
        assert torch.equal(compiled(x), net(x))
    assert torch.float32 in net.square.seen


def test_an_exception_inside_leaves_autocast_as_it_was() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyError("no")

    island = fp32_island(Broken())
    with torch.autocast(chosen_device().type, torch.float16):
        with pytest.raises(KeyError):
            island(torch.ones(1))
        assert torch.is_autocast_enabled(chosen_device().type)


def test_half_parameters_and_buffers_of_an_island_become_float32(seed: object) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).half()
    parameter = next(module.parameters())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    fp32_island(module)
    assert next(module.parameters()) is parameter
    assert all(t.dtype is not torch.float16 for t in module.state_dict().values())
    module(torch.ones(2, 4).half()).sum().backward()
    optimizer.step()


class HalfNet(nn.Module):
    """A block with a square that overflows half, between layers that are half by themselves."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(4, 8), block, nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.block(self.first(x)))


class RmsNorm(nn.Module):
    def __init__(self, weights: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8) + 0.5) if weights else 1.0

    def forward(self, x: Tensor) -> Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.weight


def with_gradients(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Return the output, and the gradient of every parameter, in float64."""
    model.zero_grad()
    out = model(x)
    out.double().square().sum().backward()
    grads = {n: p.grad.double() for n, p in model.named_parameters() if p.grad is not None}
    return {"out": out.detach().double(), **grads}


@parametrize_pairs(
    compiled=[False, pytest.param(True, marks=pytest.mark.slow)],
    weights=[True, False],
    dtype=[torch.float16, torch.bfloat16],
)
def test_an_island_in_a_model_that_is_half_by_itself(
    dtype: torch.dtype, weights: bool, compiled: bool, seed: object
) -> None:
    """Output and gradients follow float64; without the island they are zero or not finite in FP16."""
    net = HalfNet(RmsNorm(weights)).to(dtype)
    x = (torch.randn(3, 4) * 1000).to(dtype)
    exact = with_gradients(copy.deepcopy(net).double(), x.double())
    bare = with_gradients(copy.deepcopy(net), x)
    fp32_island(net.block)
    model: Any = torch.compile(net, backend="aot_eager", fullgraph=True) if compiled else net
    found = {n.removeprefix("_orig_mod."): t for n, t in with_gradients(model, x).items()}
    assert found.keys() == exact.keys()
    assert net(x).dtype is dtype
    error = {n: ((found[n] - exact[n]).norm() / exact[n].norm()).item() for n in exact}
    assert max(error.values()) < 20 * torch.finfo(dtype).eps, error
    if dtype is torch.float16:
        without = (bare["out"] - exact["out"]).norm() / exact["out"].norm()
        assert not without < 0.1  # the squares overflowed: x / inf is 0
        assert net.first.weight.dtype is torch.float16


def test_an_island_stays_one_after_its_model_became_half(seed: object) -> None:
    model = nn.Sequential(nn.Linear(4, 4), fp32_island(nn.LayerNorm(4)), nn.Linear(4, 2))
    x = torch.randn(3, 4).half()
    model.half()
    out = model(x)
    assert [p.dtype for p in model[1].parameters()] == [torch.float32, torch.float32]
    assert out.dtype == torch.float16
    expected = model[1](model[0](x).float())  # the norm itself is computed in FP32
    assert torch.equal(model[1](model[0](x)), expected.half())
    out.float().sum().backward()
    assert model[1].weight.grad.dtype == torch.float32


@pytest.mark.parametrize("order", [("block", ""), ("", "block")])
def test_islands_inside_each_other_return_half(order: tuple[str, ...], seed: object) -> None:
    """The weights of the inner island are FP32 already: the outer one is in a half model all the same."""
    net = nn.Sequential(OrderedDict(inner=HalfNet(RmsNorm()), last=nn.Linear(2, 2))).half()
    x = (torch.randn(3, 4) * 1000).half()
    exact = with_gradients(copy.deepcopy(net).double(), x.double())
    for name in order:
        fp32_island(net.get_submodule("inner").get_submodule(name))
    found = with_gradients(net, x)
    error = {n: ((found[n] - exact[n]).norm() / exact[n].norm()).item() for n in exact}
    assert max(error.values()) < 20 * torch.finfo(torch.float16).eps, error


@pytest.mark.on_standin
def test_a_half_model_under_autocast_keeps_the_outputs_of_islands(seed: object) -> None:
    net = HalfNet(RmsNorm()).half()
    fp32_island(net.block)
    with torch.autocast(chosen_device().type, torch.float16):
        assert net.block(torch.randn(2, 8).half()).dtype is torch.float32
        assert net(torch.randn(2, 4).half()).dtype is torch.float16


def test_outputs_return_to_the_dtype_of_the_inputs_in_any_nesting(seed: object) -> None:
    class Nested(nn.Module):
        def forward(self, batch: dict[str, Any]) -> dict[str, Any]:
            return {"a": [batch["x"][0] * 2], "b": Box(batch["x"][0]), "ids": batch["ids"]}

    out = fp32_island(Nested())({"ids": torch.arange(2), "x": (torch.ones(2).bfloat16(),)})
    assert (out["a"][0].dtype, out["b"].inner.dtype) == (torch.bfloat16, torch.bfloat16)
    assert out["ids"].dtype is torch.int64
    wide = fp32_island(Nested())({"ids": torch.arange(2), "x": (torch.ones(2),)})
    assert wide["a"][0].dtype is torch.float32


Pair = namedtuple("Pair", ["a", "b"])


@dataclass
class Box:
    inner: Any
    label: str = "x"
    derived: int = field(default=0, init=False)


def test_inputs_are_cast_in_any_nesting() -> None:
    half, ids = torch.ones(2).half(), torch.arange(3)
    given: dict[str, Any] = {
        "a": [half, (ids, Pair(half, 1))],
        "b": Box(OrderedDict(k=half.bfloat16())),
        "c": "text",
    }
    got = cast_to_fp32(given)
    assert got["a"][0].dtype is torch.float32
    assert got["a"][1][0] is ids
    assert isinstance(got["a"][1][1], Pair)
    assert got["a"][1][1].a.dtype is torch.float32
    assert isinstance(got["b"], Box)
    assert isinstance(got["b"].inner, OrderedDict)
    assert got["b"].inner["k"].dtype is torch.float32
    assert given["a"][0] is half  # the caller's own is untouched
    same = {"x": [torch.ones(2), ids], "y": Box(None)}
    assert cast_to_fp32(same) is same  # a cache that a model writes into must stay that cache


def test_keyword_arguments_are_cast() -> None:
    class Keyed(nn.Module):
        def forward(self, *, x: Tensor, mask: Tensor) -> Tensor:
            assert x.dtype is torch.float32
            return x * mask

    fp32_island(Keyed())(x=torch.ones(2).half(), mask=torch.tensor([True, False]))


# -- plans


def test_apply_plan_names_close_matches_and_changes_nothing(seed: object) -> None:
    net = Net()
    plan = {"islands": [{"module": "square"}, {"module": "square.linaer"}, {"module": "zzz"}]}
    with pytest.raises(
        UsageError, match=r"'square\.linaer' \(did you mean square\.linear.*'zzz', but Net"
    ):
        apply_plan(net, plan)
    assert not is_island(net.square)


def test_apply_plan_from_a_file_and_through_wrappers(tmp_path: Any, seed: object) -> None:
    file = tmp_path / "plan.yaml"
    PrecisionPlan(islands=(Island(module="square", reason="why: it's squared"),)).save(file)
    net = Net()
    assert apply_plan(net, file) == ["square"]

    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    wrapped = Wrapper(Net())
    assert apply_plan(wrapped, str(file)) == ["module.square"]
    assert is_island(wrapped.module.square)  # type: ignore[arg-type]


def test_a_plan_survives_yaml_and_json() -> None:
    scale = ScaleRange(low=1.0, high=65536.0, best=32768.0)
    islands = (Island(module="a.b", reason="overflow: 1e5 > 65504 # really"), Island(module=""))
    plan = PrecisionPlan(islands=islands, loss_scale=scale)
    assert PrecisionPlan.from_yaml(plan.to_yaml()) == plan
    assert PrecisionPlan.from_json(plan.to_json()) == plan
    assert plan.to_yaml().startswith("kind: plan\nschema_version: 1\n")


@each(
    ("text", "says"),
    [
        ("kind: [", "not YAML"),
        ("- 1", "kind: plan"),
        ("kind: step\nschema_version: 1", "kind: plan"),
        ("kind: plan\nschema_version: 99", "version 99"),
        ("kind: plan\nschema_version: 1\nisles: []", "isles"),
        ("kind: plan\nschema_version: 1\nislands: [{module: a}, {module: a}]", "more than once"),
        ("kind: !!python/object/apply:os.system ['true']", "not YAML"),
    ],
)
def test_a_damaged_plan_is_refused(text: str, says: str, tmp_path: Any) -> None:
    with pytest.raises(RecordError, match=says):
        PrecisionPlan.from_yaml(text)
    file = tmp_path / "p.yaml"
    file.write_text(text)
    with pytest.raises(RecordError, match=r"p\.yaml"):
        PrecisionPlan.load(file)
    with pytest.raises(RecordError, match="cannot be read"):
        PrecisionPlan.load(tmp_path / "missing.yaml")


def test_fp32_wins_over_a_rescaled_pattern_and_wrapped_blocks_are_part_of_it(seed: object) -> None:
    blocks = [nn.Sequential(nn.Linear(4, 4)) for _ in range(3)]
    model = nn.Sequential(blocks[0], checkpoint_wrapper(blocks[1]), blocks[2])
    plan = PrecisionPlan(islands=(Island(module="0.0"), Island(module="*.0", kind="rescaled")))
    apply_plan(model, plan)
    assert [is_fp32_island(block[0]) for block in blocks] == [True, False, False]
    assert all(is_island(block[0]) for block in blocks)
