"""A finding is a problem only if the project shows that it matters; any other one names its condition."""

from __future__ import annotations

from pathlib import Path

from halfguard.lint.engine import lint_bytes
from halfguard.lint.output import to_json, to_text
from halfguard.lint.run import FileResult
from halfguard.lint.settings import Settings
from tests.lint.test_unused import project
from tests.support.cases import each

README = "# Train\n\n```\npython train.py\n```\n"
OPTION = "parser.add_argument('--amp', action='store_true')\nargs = parser.parse_args()\n"
CLIPS = """
def train(model, optimizer, batches):
    for x in batches:
        with torch.autocast('cuda', dtype=torch.float16{on}):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        {clip}torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
train(model, optimizer, batches)
"""


def script(before: str = "", enabled: str = "", clip: str = "") -> str:
    made = f"scaler = torch.amp.GradScaler('cuda'{enabled})\n"
    return f"import torch\n{before}{made}{CLIPS.format(on=enabled, clip=clip)}"


def conditions(
    root: Path, text: str, *, named: str = README, **files: str
) -> list[tuple[str, str]]:
    whole = project(root, train_dot_py=text, README_dot_md=named, **files)
    found = lint_bytes(text.encode(), str(root / "train.py"), Settings(), Settings().rules(), whole)
    assert all((d.severity == "note") is bool(d.condition) for d in found)
    return [(d.code, d.condition) for d in found]


@each(
    ("text", "named", "condition"),
    [
        (script(), README, ""),
        (script(), "# Train\n\n```\npython other.py\n```\n", ""),  # which is not there
        (script("amp = True\n", ", enabled=amp"), README, ""),
        (script(OPTION, ", enabled=args.amp"), README.replace(".py", ".py --amp"), ""),
        (script("CLIP = -1\n", clip="if CLIP > 0: "), README, "CLIP > 0 is true"),
        (script("CLIP = 1.0\n", clip="if CLIP > 0: "), README, ""),
        (script("", clip="if rank == 0: "), README, ""),
        (script("ok = torch.cuda.is_bf16_supported()\n"), README, "float16 is chosen instead of bfloat16"),
        (script("# float16 or bfloat16\n"), README, "float16 is chosen instead of bfloat16"),
        (script("amp = amp or flag()\n", ", enabled=amp"), README, ""),  # of itself; the run decides
    ],
)  # fmt: skip
def test_what_a_finding_depends_on(tmp_path: Path, text: str, named: str, condition: str) -> None:
    assert conditions(tmp_path, text, named=named) == [("HG201", condition)]


def test_a_program_that_no_text_runs(tmp_path: Path) -> None:
    named = README.replace("train.py", "other.py")
    found = conditions(tmp_path, script(), named=named, other_dot_py="print(1)\n")
    assert found == [("HG201", "this file is run")]


def test_a_program_that_imports_a_name_that_does_not_exist(tmp_path: Path) -> None:
    text = "from losses import Focal\n" + script()
    for name, condition in (("Focal", ""), ("Dice", "this file is run")):
        found = conditions(tmp_path, text, losses_dot_py=f"class {name}:\n    pass\n")
        assert found == [("HG201", condition)]


@each(
    ("settings", "condition"),
    [
        ({"a_dot_yaml": "amp: true\n"}, ""),
        ({"a_dot_yaml": "amp: true\n", "b_dot_yaml": "amp: false\n"}, "float16 is on"),
    ],
)
def test_a_switch_is_on_if_no_configuration_turns_it_off(
    tmp_path: Path, settings: dict[str, str], condition: str
) -> None:
    text = script("cfg = load()\n", ", enabled=cfg.amp")
    assert conditions(tmp_path, text, **settings) == [("HG201", condition)]


@each(
    ("required", "condition"),
    [("torch==2.6.0\n", ""), ("numpy\n", "torch is 2.4 or later"), ("torch>=2.0\n", "torch is 2.4 or later")],
)  # fmt: skip
def test_a_deprecated_name(tmp_path: Path, required: str, condition: str) -> None:
    text = "import torch\nscaler = torch.cuda.amp.GradScaler()\n"
    found = conditions(tmp_path, text, requirements_dot_txt=required)
    assert found == [("HG405", condition)]


@each(
    ("required", "condition"),
    [("torch==2.6.0\n", ""), ("numpy\n", ""), ("torch==1.9.0\n", "apex is newer than the required torch")],
)  # fmt: skip
def test_apex_beside_an_old_torch(tmp_path: Path, required: str, condition: str) -> None:
    text = "import torch\nfrom apex import amp\nm, o = amp.initialize(m, o)\n"
    assert conditions(tmp_path, text, requirements_dot_txt=required) == [("HG413", condition)]


SAVES = """
def load(path, model, optimizer):
    checkpoint = torch.load(path)
    model.load_state_dict(checkpoint['model'])
    optimizer.load_state_dict(checkpoint['optimizer'])
if args.resume:
    load(args.resume, model, optimizer)
torch.save({'model': model.state_dict(), 'optimizer': optimizer.state_dict()}, 'last.pt')
"""
RESUME = "parser.add_argument('--resume', default=None)\nargs = parser.parse_args()\n"


@each(
    ("command", "condition"),
    [("python train.py", "training is resumed"), ("python train.py --resume last.pt", "")],
)
def test_a_checkpoint_matters_if_a_command_resumes(
    tmp_path: Path, command: str, condition: str
) -> None:
    text = script(RESUME, clip="scaler.unscale_(optimizer)\n        ") + SAVES
    found = conditions(tmp_path, text, named=README.replace("python train.py", command))
    assert found == [("HG309", condition)]


def test_a_file_that_cannot_be_read_is_a_problem_only_if_a_text_runs_it(tmp_path: Path) -> None:
    text = script() + "print(\n"
    assert conditions(tmp_path, text) == [("HG001", "")]
    assert conditions(tmp_path, text, named="# Nothing\n") == [("HG001", "this file is run")]


def test_ranks_hang_only_if_several_are_started(tmp_path: Path) -> None:
    check = (
        script("import torch.distributed\n")
        .replace(
            "        scaler.scale",
            "        if torch.isnan(loss):\n            continue\n        scaler.scale",
        )
        .replace(
            "        torch.nn.utils", "        scaler.unscale_(optimizer)\n        torch.nn.utils"
        )
    )
    started = README.replace("python train.py", "torchrun --nproc_per_node 2 train.py")
    assert conditions(tmp_path, check) == [("HG301", "several ranks train")]
    assert conditions(tmp_path, check, named=started) == [("HG301", "")]


def test_a_note_is_one_line_and_no_problem(tmp_path: Path) -> None:
    text = script("CLIP = -1\n", clip="if CLIP > 0: ")
    whole = project(tmp_path, train_dot_py=text, README_dot_md=README)
    path = str(tmp_path / "train.py")
    found = lint_bytes(text.encode(), path, Settings(), Settings().rules(), whole)
    shown = to_text([FileResult(path, found)])
    assert "HG201 Only if CLIP > 0 is true: The gradients are still multiplied" in shown
    assert "Found 0 problems in 0 files." in shown
    assert '"condition": "CLIP > 0 is true"' in to_json([FileResult(path, found)])
