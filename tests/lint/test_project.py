"""How a project trains, and what that means for a loss function in a file of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfguard.lint.engine import lint_bytes
from halfguard.lint.project import Project, find_root, project_files, read_facts, read_project
from halfguard.lint.rule import all_rules
from halfguard.lint.settings import Settings
from tests.support.cases import each

MIXED = Project(known=True, mixed=True)
HALF = Project(known=True, half_weights=True)
FULL = Project(known=True)
HEAD = "import torch\nfrom torch import nn\n"
ATTENTION = HEAD + (
    "class Attention(nn.Module):\n    def forward(self, q, k, mask):\n"
    "        scores = torch.matmul(q, k) * self.scale\n"
    "        return scores.masked_fill(mask, -1e9).softmax(-1)\n"
)
ENTROPY = HEAD + (
    "class Entropy(nn.Module):\n    def forward(self, x):\n        p = x.softmax(-1)\n"
    "        return -(p * torch.log(p + 1e-8)).sum(-1)\n"
)


def codes(text: str, project: Project, path: str = "models/loss.py") -> list[str]:
    return [d.code for d in lint_bytes(text.encode(), path, Settings(), all_rules(), project)]


@each(
    ("text", "project", "wanted"),
    [
        (ATTENTION, MIXED, ["HG101"]),
        (ATTENTION, HALF, ["HG101"]),
        (ATTENTION, FULL, []),
        (ENTROPY, MIXED, []),  # autocast runs softmax in float32
        (ENTROPY, HALF, ["HG105"]),
        (ENTROPY, FULL, []),
    ],
)
def test_the_project_decides(text: str, project: Project, wanted: list[str]) -> None:
    assert codes(text, project) == wanted


def test_code_beside_the_model_is_not_trained() -> None:
    assert codes(ATTENTION, MIXED, "tests/test_attention.py") == []
    assert codes(ATTENTION, MIXED, "examples/legacy/attention.py") == []
    assert codes(ATTENTION.replace("def forward", "def generate"), MIXED) == []


@each(
    ("text", "facts"),
    [
        (b"loss.backward()", {"known"}),
        (b"scaler = GradScaler()", {"mixed"}),
        (b'Trainer(precision="16-mixed")', {"known", "mixed", "can_lower"}),
        (b"trainer:\n  precision: 16\n", {"mixed"}),
        (b"fp16: true", {"half_option"}),
        (b"use_amp = cfg.amp", {"half_option"}),
        (b"torch.autocast('cuda', dtype=torch.bfloat16)", {"can_lower"}),
        (b"model.convert_to_fp16()", {"half_weights", "can_lower"}),
        (b"convert_weights_to_fp16(model)", {"half_weights", "can_lower"}),
        (b"optimizer.load_state_dict(state)", {"resumes"}),
        (b"self.optimizers[i].load_state_dict(s)", {"resumes"}),
        (b"model.load_state_dict(state)", set()),
        (b"def kl_loss(p, q):\n    p = p.float()\n", {"casting_losses"}),
        (b"def kl_loss(p, q):\n    y = labels.float()\n", set()),
        (b"from flash_attn import flash_attn_func", {"needs_ampere"}),
        (b"from transformers import TrainingArguments", {"can_lower"}),
        (b"x = 16", set()),
        (b"torch==1.13.1\n", {"pins_old_torch"}),
        (b"  - pytorch=1.12\n", set()),
        (b"torch>=1.8", {"allows_old_torch"}),
        (b'torch >= 2.4", "numpy', set()),
        (b"torch>=2.10", set()),
        (b"torch==2.13.0", set()),
    ],
)
def test_facts(text: bytes, facts: set[str]) -> None:
    assert read_facts(text) == facts


def test_a_project_is_the_sum_of_its_files(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    inner = tmp_path / "pkg"
    inner.mkdir()
    (inner / "a.py").write_text("loss.backward()")
    (inner / "b.py").write_text("scaler = GradScaler()")
    assert find_root(inner / "a.py") == tmp_path
    found = read_project([p.read_bytes() for p in inner.iterdir()])
    assert found == Project(known=True, mixed=True)
    assert read_project([]) == Project()


def test_an_option_for_float16_needs_code_that_casts() -> None:
    """An option that nothing reads does not make a project train in float16."""
    option, loop = b"parser.add_argument('--fp16')", b"loss.backward()"
    assert not read_project([option, loop]).may_train_in_half
    assert read_project([option, loop, b"with torch.autocast('cuda', enabled=fp16):"]).mixed


SAVES = HEAD + (
    "scaler = torch.amp.GradScaler('cuda')\n"
    "def save(model, optimizer):\n"
    "    torch.save({'m': model.half(), 'o': optimizer.state_dict()}, 'last.pt')\n"
)
CHOICE = HEAD + "scaler = torch.amp.GradScaler('cuda') if args.precision == 'amp' else None\n"
LOSS = HEAD + (
    "def train(model, optimizer, scaler, criterion, x, y):\n"
    "    with torch.autocast('cuda', dtype=torch.float16):\n        out = model(x)\n"
    "    loss = criterion(out, y)\n    scaler.scale(loss).backward()\n"
    "    scaler.step(optimizer)\n    scaler.update()\n"
)


def test_a_checkpoint_that_nothing_loads_is_not_resumed_from() -> None:
    resumes = Project(known=True, mixed=True, resumes=True)
    loads = "def load(optimizer):\n    optimizer.load_state_dict(torch.load('last.pt')['o'])\n"
    helped = "utils.load_checkpoint('last.pt', model, optimizer)\n"
    assert codes(SAVES + loads, resumes) == ["HG309", "HG311"]
    assert codes(SAVES + helped, resumes) == ["HG309", "HG311"]
    assert codes(SAVES, resumes) == ["HG311"]
    assert codes(SAVES, MIXED) == []


def test_a_choice_of_precision_needs_a_scaler_for_float16_weights() -> None:
    assert codes(CHOICE, Project(known=True, mixed=True, half_weights=True)) == ["HG402"]
    assert codes(CHOICE, MIXED) == []


def test_a_project_whose_losses_cast_their_inputs_may_call_them_outside_of_autocast() -> None:
    assert codes(LOSS, MIXED) == ["HG115"]
    assert codes(LOSS, Project(known=True, mixed=True, casting_losses=True)) == []


def test_bfloat16_support_is_no_question_where_flash_attention_is_used() -> None:
    text = HEAD + "dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16\n"
    assert codes(text, MIXED) == ["HG406"]
    assert codes(text, Project(known=True, mixed=True, needs_ampere=True)) == []


def test_an_old_torch_keeps_its_names() -> None:
    text = "import torch\nscaler = torch.cuda.amp.GradScaler()\n"
    found = lint_bytes(
        text.encode(), "a.py", Settings(), all_rules(), Project(allows_old_torch=True)
    )
    assert [d.fix and d.fix.kind for d in found] == ["unsafe"]
    assert codes(text, Project(pins_old_torch=True)) == []


@pytest.mark.parametrize("name", ["requirements_training.txt", "det/det-requirements.txt"])
def test_requirements_under_other_names_are_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "train.py").write_text("loss.backward()\n")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("numpy\ntorch==1.9.0\n")
    files = [path.read_bytes() for path in project_files(tmp_path, ())]
    assert read_project(files).pins_old_torch


def test_a_name_with_a_stand_in_for_old_versions_is_not_rewritten() -> None:
    text = (
        "try:\n    from torch.cuda.amp import GradScaler\nexcept:\n    class GradScaler:\n"
        "        def __init__(self, enabled=True): pass\nscaler = GradScaler(enabled=True)\n"
    )
    (found,) = lint_bytes(text.encode(), "a.py", Settings(), all_rules(), Project())
    assert (found.code, found.fix) == ("HG405", None)
