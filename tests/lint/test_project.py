"""How a project trains, and what that means for a loss function in a file of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from halfguard.lint.engine import lint_bytes
from halfguard.lint.project import Project, find_root, project_files, read_project, shows_half
from halfguard.lint.registry import all_rules
from halfguard.lint.requirements import Version, read_torch
from halfguard.lint.run import Linter, run_files
from halfguard.lint.settings import Settings
from tests.support.cases import each

LOSS_FILE = str(Path("models/loss.py").absolute())
HALF = Project(lone=False, called_in_half=frozenset({LOSS_FILE}))
FULL = Project(lone=False)
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
        (ATTENTION, HALF, ["HG101"]),
        (ATTENTION, FULL, []),
        (ATTENTION, replace(HALF, called_in_half=frozenset()), []),  # nothing that trains calls it
        (ENTROPY, HALF, []),  # autocast runs softmax in float32
        (ENTROPY, FULL, []),
    ],
)
def test_the_project_decides(text: str, project: Project, wanted: list[str]) -> None:
    assert codes(text, project) == wanted


def test_code_beside_the_model_is_not_trained() -> None:
    paths = ("tests/test_attention.py", "examples/legacy/attention.py", "third_party/loss.py")
    for path in (*paths, "old/loss.py"):
        reached = replace(HALF, called_in_half=frozenset({str(Path(path).absolute())}))
        assert codes(ATTENTION, reached, path) == []
    assert codes(ATTENTION.replace("def forward", "def generate"), HALF) == []


@each(
    ("text", "is_proof"),
    [
        (b"scaler = GradScaler()", True),
        (b'Trainer(precision="16-mixed")', True),
        (b"trainer:\n  precision: 16\n", True),
        (b"fp16: true", True),
        (b"use_amp = cfg.amp", False),
        (b"torch.autocast('cuda', dtype=torch.bfloat16)", False),
        (b"model.half()", True),
        (b"x = 16", False),
    ],
)
def test_proof_of_float16(text: bytes, is_proof: bool) -> None:
    assert shows_half(text) == is_proof


@each(
    ("text", "pinned", "least"),
    [
        ("torch==1.13.1", [(1, 13)], []),
        ("  - pytorch=1.10.2=py3.8_cuda11.3", [(1, 10)], []),
        ('torch = "^1.13"', [(1, 13)], []),
        ("torch>=1.8,<2", [(2, -1)], [(1, 8)]),
        ('"torch >= 2.4", "numpy', [], [(2, 4)]),
        ("torch>=2.10", [], [(2, 10)]),
        ("python3 (>=3.6) and pytorch (>=1.8.0)", [], [(1, 8)]),
        ("pip install torch torchvision  # install torch-1.13.1", [(1, 13)], []),
        ("FROM pytorch/pytorch:1.11.0-cuda11.3", [(1, 11)], []),
        ("FROM nvcr.io/nvidia/pytorch:19.10-py3", [(1, 5)], []),
        ("FROM nvcr.io/nvidia/pytorch:21.11-py3", [(2, 2)], []),
        ("FROM nvcr.io/nvidia/pytorch:25.01-py3", [], []),
        ("segmentation-models-pytorch==0.3.2, rotary_embedding_torch==0.1.0", [], []),
        ("FROM nvcr.io/nvidia/pytorch:24.04-py3", [(2, 3)], []),
        ("#SBATCH --image=site/pytorch:ngc-23.07-v0", [(2, 2)], []),
        ("pytorch-lightning>=1.6, py38_torch_1.10.0", [], []),
        ("pytorch-lightning==1.6", [(2, 0)], []),
        ("pip install torch -c pytorch-lts", [(1, 8)], []),
        ("torchvision==0.15.2", [(2, 0)], []),
        (
            "torchvision == 0.13, torchaudio==0.12.1, torchaudio==2.1",
            [(1, 12), (1, 12), (2, 1)],
            [],
        ),
        ("  - pytorch == 2.3.1", [(2, 3)], []),
        ("torch<2.4", [(2, 3)], []),
        ("* PyTorch install 1.7.1", [(1, 7)], []),
        ("1. 1.1.0 =< PyTorch < 1.5.0", [(1, 4)], []),
        ("- [PyTorch](https://pytorch.org) 1.10", [(1, 10)], []),
        ("- **PyTorch**: 1.8.1\n- PyTorch:1.8.1", [(1, 8), (1, 8)], []),
        ("- PyTorch 1.2.0+\n* PyTorch 1.4 or later", [], [(1, 2), (1, 4)]),
        ("We use PyTorch 1.7, and it needs PyTorch 1.4 or greater", [(1, 7)], [(1, 4)]),
        ("It was tested with:\n- PyTorch 1.7", [(1, 7)], []),
        ("| pytorch 2.0.1 | https://... |\n| torch | 1.13.1 |", [(2, 0), (1, 13)], []),
        ("* pytorch1.2.0, torch2trt, PyTorch: 1.8.1+cu111", [(1, 2), (1, 8)], []),
        ('url = "https://download.pytorch.org/whl/torch-1.8.0%2Bcu111-cp39.whl"', [(1, 8)], []),
        ("- PyTorch 2.6", [], []),
    ],
)
def test_versions_of_torch(text: str, pinned: list[Version], least: list[Version]) -> None:
    found = list(read_torch(text.encode()))
    assert [version for version, is_least in found if not is_least] == pinned
    assert [version for version, is_least in found if is_least] == least


def test_only_what_describes_a_set_up_is_read_as_prose() -> None:
    text = b"In PyTorch 1.12 sharding was added. pip install torch==2.6"
    assert list(read_torch(text, "sharding.md")) == [((2, 6), False)]
    assert list(read_torch(text, "INSTALL.md")) == [((1, 12), False), ((2, 6), False)]


def test_a_project_is_the_sum_of_its_files(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    inner = tmp_path / "pkg"
    inner.mkdir()
    (inner / "a.py").write_text("loss.backward()")
    (inner / "b.py").write_text("optimizer = SGD(); scaler = GradScaler()")
    assert find_root(inner / "a.py") == tmp_path
    found = read(tmp_path)
    half = frozenset({str(inner / "b.py")})
    assert found == Project(lone=False, root=str(tmp_path), called_in_half=half)
    assert read_project([], tmp_path) == Project(lone=False, root=str(tmp_path))


def read(root: Path) -> Project:
    return read_project(((path, path.read_bytes()) for path in project_files(root, ())), root)


@pytest.mark.parametrize(
    "line",
    ["from models.attention import A", "import models.attention as m", "from models import x"],
)
def test_what_a_file_that_trains_in_half_imports_runs_in_half(tmp_path: Path, line: str) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models/__init__.py").write_text("from .attention import A\n")
    (tmp_path / "models/attention.py").write_text(ATTENTION)
    (tmp_path / "models/other.py").write_text(ATTENTION)
    (tmp_path / "train.py").write_text(f"{line}\nscaler = GradScaler()\nloss.backward()\n")
    project = read(tmp_path)
    assert project.may_call_in_half(str(tmp_path / "models/attention.py"))
    assert not project.may_call_in_half(str(tmp_path / "models/other.py"))


def test_what_a_package_offers_is_as_near_as_the_package(tmp_path: Path) -> None:
    (tmp_path / "model/blocks").mkdir(parents=True)
    (tmp_path / "build.py").write_text("from model import Net\n")
    (tmp_path / "model/__init__.py").write_text("from .Net import Net\n")
    (tmp_path / "model/Net.py").write_text("from .blocks.attention import A\n")
    (tmp_path / "model/blocks/attention.py").write_text(ATTENTION)
    text = "from build import get\nfrom model import Loss\nscaler = GradScaler()\nloss.backward()\n"
    (tmp_path / "train.py").write_text(text)
    assert read(tmp_path).may_call_in_half(str(tmp_path / "model/blocks/attention.py"))


def test_precision_is_known_through_many_assignments() -> None:
    long = "        scores = scores.view(1)\n" * 8
    assert codes(ATTENTION.replace("        return", f"{long}        return"), HALF) == ["HG101"]


SWITCHED = HEAD + (
    "scaler = torch.amp.GradScaler('cuda', enabled=args.amp)\n"
    "def train(model, optimizer, x):\n    scaler.scale(model(x)).backward()\n"
    "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n    scaler.step(optimizer)\n"
    "    scaler.update()\n"
    "train(model, optimizer, x)\n"
)


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("other.txt", "", []),
        ("run.sh", "python train.py --amp", ["HG201"]),
        ("README.md", "Use `--amp` on small cards.", []),
        ("README.md", "python train.py --amp", ["HG201"]),
        ("conf.yaml", "amp: true", ["HG201"]),
        ("other.py", "main(amp=True)", ["HG201"]),
        (
            "other.py",
            "parser.add_argument(\n    '--amp',\n    type=bool,\n    default=True)",
            ["HG201"],
        ),
        ("other.py", "parser.add_argument('--amp', default=False)", []),
        ("other.py", "clamp = True", []),
        ("run.sh", "python train.py --amp False", []),
        ("short.py", "parser.add_argument('-a', '--amp', action='store_true')", ["HG201"]),
    ],
)
def test_a_switch_that_nothing_turns_on_is_silent(
    tmp_path: Path, name: str, text: str, found: list[str]
) -> None:
    (tmp_path / "args.py").write_text("parser.add_argument('--amp', action='store_true')\n")
    (tmp_path / "train.py").write_text(SWITCHED)
    (tmp_path / name).write_text(text)
    assert codes(SWITCHED, read(tmp_path), str(tmp_path / "train.py")) == found
    given = SWITCHED.replace("args.amp", "amp")  # an argument may come from any switch
    assert codes(given, read(tmp_path), str(tmp_path / "train.py")) == found


@pytest.mark.parametrize(
    ("enabled", "settings", "other", "found"),
    [
        ("hps.train.fp16_run", '"fp16_run": false', "", []),
        ("settings.get('fp16_run')", '"fp16_run": false', "use(fp16_run=True)", []),
        ("settings['fp16_run'] and on_gpu", '"fp16_run": false', "", []),
        ("settings['fp16_run'] or on_gpu", '"fp16_run": false', "", ["HG201"]),
        ("not hps.fp16_run", '"fp16_run": false', "", ["HG201"]),
        ("hps.fp16_run", '"fp16_run": false, "b": {"fp16_run": true}', "", ["HG201"]),
    ],
)
def test_a_setting_that_is_off_everywhere_is_silent(
    tmp_path: Path, enabled: str, settings: str, other: str, found: list[str]
) -> None:
    (tmp_path / "base.json").write_text(f"{{{settings}}}")
    (tmp_path / "other.py").write_text(other)
    made = SWITCHED.replace("args.amp", enabled)
    asked = SWITCHED.replace(", enabled=args.amp)", f") if {enabled} else None")
    casts = SWITCHED.replace(", enabled=args.amp", "").replace(
        "    scaler.scale(model(x))",
        f"    with torch.autocast('cuda', enabled={enabled}):\n        y = model(x)\n    scaler.scale(y)",
    )
    for text in (made, asked, casts):
        assert codes(text, read(tmp_path), str(tmp_path / "train.py")) == found


APEX_SAVES = (
    "import torch\nfrom apex import amp\nif args.fp16:\n    m, optimizer = amp.initialize(m, optimizer)\n"
    "torch.save({'o': optimizer.state_dict()}, 'last.pt')\noptimizer.load_state_dict(torch.load('a')['o'])\n"
)


@each(("command", "wanted"), [("", []), ("python train.py --fp16", ["HG309", "HG413"])])
def test_apex_that_nothing_turns_on_scales_nothing(
    tmp_path: Path, command: str, wanted: list[str]
) -> None:
    (tmp_path / "run.sh").write_text(command)
    assert sorted(codes(APEX_SAVES, read(tmp_path), str(tmp_path / "train.py"))) == wanted


@each(
    ("dtypes", "wanted"),
    [
        ("dict(dtype=torch.bfloat16)", []),
        ("{'dtype': torch.bfloat16, 'other': torch.float16}", ["HG201"]),
        ("quantize(compute_dtype=torch.bfloat16)", ["HG201"]),
    ],
)
def test_a_scale_has_no_effect_where_autocast_is_to_bfloat16(
    dtypes: str, wanted: list[str]
) -> None:
    text = SWITCHED.replace(", enabled=args.amp", "") + f"given = {dtypes}\n"
    assert codes(text, FULL) == wanted


def test_a_setting_of_python_that_is_off_is_silent(tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text("class Train:\n    amp: bool = False\n")
    assert codes(SWITCHED, read(tmp_path), str(tmp_path / "train.py")) == []
    (tmp_path / "README.md").write_text("python train.py AMP True amp True")
    assert codes(SWITCHED, read(tmp_path), str(tmp_path / "train.py")) == ["HG201"]


def test_a_copy_of_a_library_is_not_reported(tmp_path: Path) -> None:
    (tmp_path / "monai").mkdir()
    (tmp_path / "monai/engine.py").write_text(DEPRECATED)
    (tmp_path / "train.py").write_text(DEPRECATED)
    copied = str(tmp_path / "monai/engine.py")
    assert codes(DEPRECATED, read(tmp_path), copied) == []
    assert codes(DEPRECATED, read(tmp_path), str(tmp_path / "train.py")) == ["HG405"]
    (tmp_path / "setup.py").write_text("setup(name='monai')")
    assert codes(DEPRECATED, read(tmp_path), copied) == ["HG405"]


def test_a_library_that_a_project_holds_and_imports_is_a_copy(tmp_path: Path) -> None:
    (tmp_path / "SE3/se3").mkdir(parents=True)
    for name in ("SE3/setup.py", "SE3/se3/__init__.py", "train.py"):
        (tmp_path / name).write_text("")
    copied = str(tmp_path / "SE3/se3/training.py")
    assert codes(DEPRECATED, read(tmp_path), copied) == ["HG405"]  # one of two projects
    (tmp_path / "train.py").write_text("from se3.layers import Layer\n")
    assert codes(DEPRECATED, read(tmp_path), copied) == []
    assert codes(DEPRECATED, read(tmp_path), str(tmp_path / "train.py")) == ["HG405"]


def test_tests_and_demos_train_nothing(tmp_path: Path) -> None:
    for folder, wanted in (("tests", []), ("demo", []), ("examples", ["HG405"])):
        path = str(tmp_path / folder / "train.py")
        assert codes(DEPRECATED, read(tmp_path), path) == wanted
    inside = tmp_path / "tests" / "project"  # its own root
    inside.mkdir(parents=True)
    assert codes(DEPRECATED, read(inside), str(inside / "train.py")) == ["HG405"]


@each(
    "text",
    [
        "import torch\nfrom apex import amp\nm, o = amp.initialize(m, o, opt_level='O0')\n",
        (
            "import torch\nfrom apex import amp\nif apex:\n    m, o = amp.initialize(m, o)\n"
            "else:\n    cast = torch.cuda.amp.autocast\n"
        ),
    ],
)
def test_apex_that_is_off_or_one_of_two_is_silent(text: str) -> None:
    assert codes(text, FULL) == []


SAVES = HEAD + (
    "scaler = torch.amp.GradScaler('cuda')\n"
    "def save(model, optimizer):\n"
    "    torch.save({'m': model.half(), 'o': optimizer.state_dict()}, 'last.pt')\n"
)


def test_a_checkpoint_that_nothing_loads_is_not_resumed_from() -> None:
    resumes = replace(HALF, resumes=frozenset({"builders"}))
    loads = "def load(optimizer):\n    optimizer.load_state_dict(torch.load('last.pt')['o'])\n"
    helped = "utils.load_checkpoint('last.pt', model, optimizer)\n"
    assert codes(SAVES + loads, resumes) == ["HG309", "HG311"]
    assert codes(SAVES + helped, resumes) == ["HG309", "HG311"]
    built = "from train.builders import get_model\nmodel, optimizer = get_model(1)\n"
    assert codes(SAVES + built, resumes) == ["HG309", "HG311"]
    assert codes(SAVES + built.replace("builders", "others"), resumes) == ["HG311"]
    assert codes(SAVES, resumes) == ["HG311"]
    assert codes(SAVES, HALF) == []


LOADS = "optimizer.load_state_dict(torch.load('last.pt')['o'])\n"
PER_EPOCH = HEAD + (
    "def save(model, optimizer):\n    torch.save({'o': optimizer.state_dict()}, 'last.pt')\n"
    "def train(model, optimizer, x):\n    scaler = torch.amp.GradScaler('cuda')\n    for batch in x:\n"
    "        scaler.scale(model(batch)).backward()\n        scaler.step(optimizer)\n"
    "        scaler.update()\n        optimizer.zero_grad()\n    save(model, optimizer)\n"
)
FINAL = HEAD + (
    "scaler = torch.amp.GradScaler('cuda')\ndef main(model, optimizer):\n    for epoch in range(3):\n"
    "        train(model)\n    torch.save({'o': optimizer.state_dict()}, 'last.pt')\n"
)


@each(
    ("text", "wanted"),
    [
        (SAVES + LOADS, ["HG309", "HG311"]),
        (
            SAVES.replace("scaler", "grad_scalar") + LOADS + "state = grad_scalar.state_dict()\n",
            ["HG311"],
        ),
        (PER_EPOCH + LOADS + "train(model, optimizer, x)\n", ["HG309"]),
        (PER_EPOCH + LOADS + "for epoch in range(3):\n    train(model, optimizer, x)\n", ["HG210"]),
        (FINAL + LOADS, []),
        (FINAL.replace("    torch.save", "        torch.save") + LOADS, ["HG309"]),
    ],
)
def test_a_scale_that_no_resume_needs(text: str, wanted: list[str]) -> None:
    assert codes(text, replace(HALF, resumes=frozenset({"a"}))) == wanted


def test_variants_of_a_script_report_the_same_checkpoint_once(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.py", "b.py", "c.py")]
    for path in paths:
        path.write_text((SAVES + LOADS).replace(".half()", ""))
    found = [d for r in run_files(Linter(Settings()), paths) for d in r.diagnostics]
    (one,) = found
    assert one.path == str(paths[0])


def test_a_copy_of_a_file_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "utils").mkdir()
    paths = [tmp_path / name for name in ("train.py", "utils/train.py", "utils/other.py")]
    for path in paths:
        path.write_text(DEPRECATED + ("# another\n" if path.stem == "other" else ""))
    found = [d.path for r in run_files(Linter(Settings()), paths) for d in r.diagnostics]
    assert found == [str(paths[0]), str(paths[2])]


@each(
    ("line", "wanted"),
    [
        ("optimizer.load_state_dict(state)", {"a"}),
        ("self.optimizers[i].load_state_dict(s)", {"a"}),
        ("model.load_state_dict(state)", set()),
    ],
)
def test_modules_that_load_the_state_of_an_optimizer(line: str, wanted: set[str]) -> None:
    assert read_project([(Path("a.py"), line.encode())]).resumes == wanted


@each(
    ("required", "kind"),
    [("torch>=2.4", "safe"), ("torch>=1.8", "unsafe"), ("numpy", "unsafe"), ("torch==2.3", None)],
)
def test_names_are_only_replaced_where_the_required_torch_has_the_new_ones(
    required: str, kind: str | None
) -> None:
    text = b"import torch\nscaler = torch.cuda.amp.GradScaler()\n"
    files = [(Path("/p/requirements.txt"), required.encode()), (Path("/p/a.py"), text)]
    found = lint_bytes(text, "/p/a.py", Settings(), all_rules(), read_project(files))
    assert [d.fix and d.fix.kind for d in found] == ([kind] if kind else [])


DEPRECATED = "import torch\nscaler = torch.cuda.amp.GradScaler()\n"
APEX = "import torch\nfrom apex import amp\nm, o = amp.initialize(m, o)\n"


@each(
    ("name", "text", "wanted"),
    [
        ("requirements_training.txt", "torch==1.9.0", ["HG413"]),
        ("requirements.txt", "torch==1.0", []),  # there is no other amp
        ("det/det-requirements.txt", "torch==1.9.0", ["HG413"]),  # nothing else names another one
        ("constraints.txt", "torch==1.13.0", ["HG413"]),
        ("scripts/install.bat", "pip install torch==1.9.0+cu111", ["HG413"]),
        ("requirements/base.txt", "torch==1.9.0", ["HG413"]),
        ("env/any_name.yml", "  - pytorch=1.10.2=py3.8_cuda11.3", ["HG413"]),
        ("README.md", "pip install torch==1.13.1+cu116", ["HG413"]),
        ("docker/Dockerfile.train", "FROM pytorch/pytorch:1.11.0-cuda11.3", ["HG413"]),
        ("requirements.txt", "torch==2.6.0", ["HG405", "HG413"]),
        ("docker/train.Dockerfile", "RUN pip install torch==2.2.2", ["HG413"]),
        ("job.slurm", "srun --image=nvcr.io/nvidia/pytorch:23.07-py3", ["HG413"]),
        ("README", "- PyTorch 1.4", []),
        ("other.py", "# torch==1.9.0", ["HG405", "HG413"]),
    ],
)
def test_an_old_torch_keeps_its_names_near_its_requirements(
    tmp_path: Path, name: str, text: str, wanted: list[str]
) -> None:
    (tmp_path / "det").mkdir()
    (tmp_path / "det/train.py").write_text(DEPRECATED)
    (tmp_path / "train.py").write_text(DEPRECATED)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(f"numpy\n{text}\n")
    found = codes(DEPRECATED, read(tmp_path), str(tmp_path / "train.py"))
    assert found + codes(APEX, read(tmp_path), str(tmp_path / "train.py")) == wanted
    (tmp_path / "requirements_of_all.txt").write_text("torch==2.6")
    if name.startswith("det/"):
        assert codes(DEPRECATED, read(tmp_path), str(tmp_path / "det/train.py")) == []
        assert codes(DEPRECATED, read(tmp_path), str(tmp_path / "train.py")) == ["HG405"]


def test_a_name_with_a_stand_in_for_old_versions_is_not_rewritten() -> None:
    text = (
        "try:\n    from torch.cuda.amp import GradScaler\nexcept:\n    class GradScaler:\n"
        "        def __init__(self, enabled=True): pass\nscaler = GradScaler(enabled=True)\n"
    )
    (found,) = lint_bytes(text.encode(), "a.py", Settings(), all_rules(), Project())
    assert (found.code, found.fix) == ("HG405", None)
