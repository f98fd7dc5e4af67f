"""What answers on unseen scripts got wrong: bad data, losses as modules, unwritten memory, other causes."""

from __future__ import annotations

import math
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from halfguard.investigation.advice import advise, advise_on_reference
from halfguard.investigation.answering import answer_bad_number
from halfguard.investigation.bus import HookBus
from halfguard.investigation.cures import list_cures
from halfguard.investigation.inspecting import HeadroomWatch
from halfguard.investigation.passes import Event, Few, Made, PassResult, SubmodulePlace, Target
from halfguard.investigation.proof import PROOF, Proven
from halfguard.investigation.tracking import ExactWatch
from halfguard.records.autopsy import Culprit
from halfguard.tracing.call_arguments import undispatched
from halfguard.tracing.called_modules import CalledModules
from halfguard.tracing.operation_places import ModuleStack
from tests.investigation.command import ask_about
from tests.investigation.test_held_step import THREAD, track

pytestmark = pytest.mark.usefixtures("seed")

LOSS = Event(kind="loss", backward=4, step=4, how="the loss")


def culprit(**facts: Any) -> Culprit:
    given: dict[str, Any] = {
        "kind": "op", "op": "mul", "phase": "forward", "module": None, "file": "train.py",
        "line": 1, "code": "", "dtype": "float16", "inputs": (), "outputs": (),
    }  # fmt: skip
    return Culprit(**(given | facts))


@pytest.fixture
def outermost() -> CodeType:
    return culprit.__code__


@pytest.mark.parametrize("bad", [-math.inf, math.inf, math.nan])
def test_data_that_is_multiplied_is_no_mask(outermost: CodeType, bad: float) -> None:
    layer, x = nn.Linear(4, 2), torch.ones(3, 4)
    x[1, 2] = bad
    with ExactWatch(ModuleStack(), outermost) as watch:
        layer(x)
    assert watch.last is not None
    assert watch.last.culprit.kind == "input"


def test_a_mask_that_is_added_is_one(outermost: CodeType) -> None:
    scores, mask = torch.zeros(2, 3), torch.tensor([0.0, 0.0, -math.inf])
    with ExactWatch(ModuleStack(), outermost) as watch:
        (scores + mask).softmax(-1)
    assert watch.last is None


def test_an_operation_on_data_alone_is_told_apart(outermost: CodeType) -> None:
    weight, x = torch.ones(3, requires_grad=True), torch.tensor([1.0, 0.0, 2.0])
    with ExactWatch(ModuleStack(), outermost) as watch:
        x.log()
    assert watch.of_data == {watch.last.index}
    with ExactWatch(ModuleStack(), outermost) as watch:
        (weight * x).log()
    assert watch.of_data == set()


def test_bad_data_gets_no_patch_that_hides_it() -> None:
    found = PassResult(culprit=culprit(op="log"), exact=math.inf, of_data=True)
    assert list_cures(found, LOSS) == []
    assert "Repair or drop such samples" in advise(found, LOSS, "fails")


def test_a_target_that_is_too_long_for_ctc_is_told(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text("loss = nn.CTCLoss(blank=0)\n")
    made = Made(modules=(SubmodulePlace(place=(str(script), 1), path=""),))
    found = PassResult(culprit=culprit(op="_ctc_loss", module="CTCLoss"), made=made)
    (cure,) = list_cures(found, LOSS)
    assert "+loss = nn.CTCLoss(blank=0, zero_infinity=True)" in cure.patch
    assert "longer than its input" in advise(found, LOSS, "fails")


def test_fp32_is_no_advice_where_it_fails() -> None:
    found = PassResult(culprit=culprit(), exact=131072.0)
    assert "Compute mul in FP32" in advise(found, LOSS, "fine")
    assert "FP32 alone does not fix" in advise(found, LOSS, "fails")


def test_the_script_in_fp32_explains_the_step() -> None:
    made = Made(optimizer=("train.py", 3))
    assert "had already been rounded" in advise_on_reference("fails", "fine", made, ())
    assert "learning rate" in advise_on_reference("fine", "fails", made, ())
    assert advise_on_reference("fine", "fine", made, ()) == ""
    assert advise_on_reference("fails", "unknown", made, ()) == ""


def test_a_fault_in_a_library_names_a_line_of_the_user() -> None:
    inside = culprit(file="/venv/site-packages/torch/optim/adamw.py", op="addcdiv")
    found = PassResult(culprit=inside, made=Made(half_weights=("train.py", 27)))
    target = Target(name="train.py")
    answer = answer_bad_number(target, found, LOSS, found, Proven(), note="", shared=())
    assert answer.cause.startswith("train.py:27")


def test_memory_that_nobody_has_written_is_no_number(outermost: CodeType) -> None:
    watch = HeadroomWatch(HookBus(), CalledModules(), outermost)
    with watch:
        made = torch.empty(8, dtype=torch.float16)
        with undispatched():
            made.fill_(60000.0)
        made.view(2, 4)
        unwritten = watch.headroom
        made.fill_(2.0)
        made.view(2, 4)
    assert unwritten is None
    assert watch.headroom is not None
    assert watch.headroom.largest == 2.0


def test_a_region_that_a_checkpoint_makes_again_is_not_the_users(bus: HookBus) -> None:
    class Regions:
        count = 0

        def on_autocast_made(self, _region: Any, _device: str) -> None:
            self.count += 1

    regions, layer = Regions(), nn.Linear(4, 4)
    bus.listen(regions)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = checkpoint(layer, torch.ones(2, 4), use_reentrant=False)
    before = regions.count
    out.float().sum().backward()
    assert before == regions.count


LOSS_MODULE = """
import torch
from torch import nn

class Area(nn.Module):
    def forward(self, a, b):
        size = a * a
        return (size / (size + b)).float().mean()

torch.manual_seed(0)
net, area = nn.Linear(8, 1), Area()
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(6):
    out = net(torch.randn(16, 8)).half()
    large = out * (600.0 if step == 4 else 1.0)
    loss = area(large, torch.ones(1).half())
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize("start", ["", THREAD], ids=["forked", "in place"])
def test_a_loss_that_is_a_module_becomes_an_island_in_its_first_call(
    tmp_path: Path, start: str
) -> None:
    found = track(tmp_path, start + LOSS_MODULE)
    assert found.culprit is not None
    assert found.culprit.module == "Area"
    good = [one.plan.kind for one in found.trials if one.trial.good]
    assert "island" in good
    assert [one.place for one in found.made.modules]


EARLY = """
import torch
from torch import nn

torch.manual_seed(0)
dtype = torch.float16
kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 50), 0).to(dtype)
net = nn.Linear(8, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.001)
for step in range(30):
    t = torch.tensor([40, 30, 20, 0 if step == 5 else 10])
    x = torch.randn(4, 8)
    error = (net(x) - x[:, :1]).square()
    loss = (error / (1 - kept[t].float()).unsqueeze(1)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@pytest.mark.slow
def test_numbers_that_were_rounded_before_the_step_are_kept_in_fp32(tmp_path: Path) -> None:
    answer = ask_about(EARLY, tmp_path)
    assert answer.outcome == "non-finite value"
    assert answer.in_fp32 == "fine"
    assert answer.cure is not None
    assert "0.02, 50), 0).float()" in answer.cure.patch
    assert answer.cure.trial == PROOF


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize(
    ("bad", "few", "written"),
    [
        (lambda x: x[x > 9].mean(), "none", "x[x > 9].sum() / max(x[x > 9].numel(), 1)"),
        (lambda x: x[:1].std(), "one", "x[:1].std(correction=min(1, x[:1].numel() - 1))"),
        (lambda x: (x - 1).std() / (x - x).sum(), "", ""),
    ],
)
def test_a_mean_over_nothing_and_a_deviation_of_one_number(
    tmp_path: Path, outermost: CodeType, bad: Any, few: Few, written: str
) -> None:
    with ExactWatch(ModuleStack(), outermost) as watch:
        assert not bad(torch.ones(4)).isfinite()
    assert watch.last is not None
    reason = watch.reasons[watch.last.index]
    assert ("" if reason is None else reason.few) == few
    (tmp_path / "train.py").write_text("y = x[x > 9].mean()\nz = x[:1].std()\n")
    line = ("none", "one", "").index(few) + 1
    at = culprit(file=str(tmp_path / "train.py"), line=line)
    found = PassResult(culprit=at, reason=reason)
    cures = list_cures(found, LOSS)
    assert [written in cure.patch for cure in cures] == [True] * bool(few)
    assert ("in any precision" in advise(found, LOSS, "fails")) is bool(few)


def test_a_run_that_diverges_is_told_with_the_line_of_its_optimizer() -> None:
    made = Made(optimizer=(__file__, 1))
    found = PassResult(culprit=culprit(dtype="float32"), exact=1e57, made=made)
    assert f"clip the gradients: {__file__}:1: " in advise(found, LOSS, "fails")


SCALED_BY_HAND = """
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
net = nn.Linear(8, 4).half()
copies = [p.detach().float().requires_grad_() for p in net.parameters()]
opt = torch.optim.SGD(copies, lr=0.05)
for step in range(30):
    x = torch.randn(16, 8) * (300 if step == 6 else 1)
    loss = F.cross_entropy(net(x.half()).float(), torch.randint(0, 4, (16,)))
    for p in net.parameters():
        p.grad = None
    (loss * 16384.0).backward()
    for copy, p in zip(copies, net.parameters()):
        copy.grad = p.grad.float() / 16384.0
    nn.utils.clip_grad_norm_(copies, 1.0)
    opt.step()
    with torch.no_grad():
        for copy, p in zip(copies, net.parameters()):
            p.copy_(copy)
"""


@pytest.mark.slow
def test_a_constant_loss_scale_is_named_and_half_weights_beside_copies_are_fp32_in_a_trial(
    tmp_path: Path,
) -> None:
    answer = ask_about(SCALED_BY_HAND, tmp_path)
    assert "the loss was multiplied by 16384" in answer.reason
    assert "train.py:15: (loss * 16384.0).backward()" in answer.reason
    assert (answer.code, answer.in_fp32) == ("HG611", "fine")
    assert answer.trials[0].name == "the whole step in FP32"
    assert answer.trials[0].good
    assert answer.cure.trial.endswith(PROOF)


HALF_WEIGHTS = """
import torch
from torch import nn

class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(8, 1)

    def forward(self, x):
        s = 40 * self.score(x).squeeze(-1)
        w = torch.exp(s)
        w = w / w.sum(-1, keepdim=True)
        return (w.unsqueeze(-1) * x).sum(1)

torch.manual_seed(0)
model = nn.Sequential(Pool(), nn.Linear(8, 1)).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(12):
    loss = model(torch.randn(32, 6, 8).half()).float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
"""


TEACHER = """
import torch
from torch import nn

torch.manual_seed(0)
student, teacher = nn.Linear(8, 50), nn.Linear(8, 50)
with torch.no_grad():
    teacher.weight.mul_(12)
    student.weight.copy_(teacher.weight)
teacher.requires_grad_(False).half()
optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
for _ in range(12):
    x = torch.randn(16, 8)
    with torch.autocast("cpu", dtype=torch.float16):
        p = torch.softmax(teacher(x.half()), dim=-1)
        q = torch.softmax(student(x), dim=-1)
        loss = (p * (p.log() - q.log())).sum(-1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
"""


@pytest.mark.parametrize(
    ("script", "line"),
    [
        # A rewritten expression fits the next layer with half weights.
        (HALF_WEIGHTS, "+        w = torch.softmax(s.float(), -1).half()"),
        (TEACHER, ""),  # values of a frozen model are not data
    ],
)
def test_a_patch_is_proven(tmp_path: Path, script: str, line: str) -> None:
    answer = ask_about(script, tmp_path)
    assert answer.cure is not None
    assert line in answer.cure.patch
    assert PROOF in answer.cure.trial


READS = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(5):
    loss = model(torch.ones(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    metric = (loss.detach().half() + 300).square()
    print(metric.item())
"""


def test_the_line_that_reads_nan_is_named(tmp_path: Path) -> None:
    answer = ask_about(READS, tmp_path)
    assert answer.event == "the script read NaN or Inf with item at train.py:12"
    assert answer.culprit is not None
    assert answer.culprit.line == 11


CLOSURE = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(6):
    x = torch.randn(4, 8)
    weight = torch.ones(4) if step < 4 else torch.zeros(4)

    def closure():
        optimizer.zero_grad()
        loss = (model(x).squeeze(-1).square() * weight).sum() / weight.sum()
        print(loss.item())
        loss.backward()
        return loss

    optimizer.step(closure)
"""


def test_a_closure_is_not_the_optimizers_arithmetic(tmp_path: Path) -> None:
    answer = ask_about(CLOSURE, tmp_path)
    assert answer.culprit is not None
    assert (answer.culprit.line, answer.culprit.optimizer) == (12, "")
