"""Code that nothing in a project runs is not reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfguard.lint.project import Project, project_files, read_project
from tests.lint.test_project import ATTENTION, SWITCHED, codes
from tests.support.cases import each

SCALER = (
    "import torch\nclass Scaler:\n"
    "    def __init__(self):\n        self.s = torch.cuda.amp.GradScaler()\n"
)


def project(root: Path, **files: str) -> Project:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path = path.with_name(path.name.replace("_dot_", "."))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read_project(((p, p.read_bytes()) for p in project_files(root, ())), root)


@each(
    ("files", "wanted"),
    [
        ({"train_dot_py": "print(1)\n"}, []),
        ({"train_dot_py": "from util.misc import Scaler\n"}, []),  # another one
        ({"util__misc_dot_py": SCALER}, []),
        ({"train_dot_py": "from util.utils import (\n    load,\n    Scaler,\n)\n"}, ["HG405"]),
        ({"train_dot_py": "from util import Scaler\n"}, ["HG405"]),
        ({"train_dot_py": "from util import utils\nutils.Scaler()\n"}, ["HG405"]),
        ({"train_dot_py": "from util import utils\ngetattr(utils, name)()\n"}, ["HG405"]),
        ({"conf_dot_yaml": "scaler: Scaler\n"}, ["HG405"]),
    ],
)
def test_a_class_that_nobody_uses(tmp_path: Path, files: dict[str, str], wanted: list[str]) -> None:
    whole = project(tmp_path, util__utils_dot_py=SCALER, **files)
    assert codes(SCALER, whole, str(tmp_path / "util/utils.py")) == wanted


@each(
    ("more", "wanted"),
    [
        ("def make():\n    return Scaler()\n", []),
        ("def make():\n    return Scaler()\nmake()\n", ["HG405"]),
        ("def first():\n    second()\ndef second():\n    first()\n    Scaler()\n", []),
        ("__all__ = ['Scaler']\n", []),
        ("@register\ndef make():\n    return Scaler()\n", ["HG405"]),
    ],
)
def test_what_uses_it_must_be_used_itself(tmp_path: Path, more: str, wanted: list[str]) -> None:
    whole = project(tmp_path, utils_dot_py=SCALER + more)
    assert codes(SCALER + more, whole, str(tmp_path / "utils.py")) == wanted


def test_many_functions_that_name_each_other_take_no_time(tmp_path: Path) -> None:
    names = [f"f{n}" for n in range(60)]
    calls = "".join(f"    {name}()\n" for name in names)
    text = SCALER + "".join(f"def {name}():\n    Scaler()\n{calls}" for name in names)
    path = "a (1)+[b.py"  # which is no pattern either
    (tmp_path / path).write_text(text)
    assert codes(text, project(tmp_path, b_dot_py="1"), str(tmp_path / path)) == []


MAIN = SWITCHED + "if __name__ == '__main__':\n    main()\n"


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"README_dot_md": "```\npython train.py\n--amp\n```\n"}, ["HG201"]),
        ({"README_dot_md": "```\npython other.py\n--amp\n```\n"}, []),
        ({"README_dot_md": "python other.py\npython -m train --amp\n"}, ["HG201"]),
        ({"README_dot_md": "python train.py\n\npython other.py --amp\n"}, []),
        ({"run_dot_sh": "GIVEN=--amp\npython train.py $GIVEN\n"}, ["HG201"]),
        ({"run_dot_sh": "GIVEN=--amp\npython other.py $GIVEN\n"}, []),
        ({"other_dot_py": "import train\nparser.add_argument('--amp', default=True)\n"}, ["HG201"]),
        ({"other_dot_py": "parser.add_argument('--amp', default=True)\n"}, []),
        ({"other_dot_py": "import train\nargs.amp = not args.no_amp\n"}, ["HG201"]),
        ({"configs__a_dot_yaml": "amp: true\n"}, ["HG201"]),
        ({"demos__a_dot_yaml": "amp: true\n", "demos__run__b_dot_py": "1"}, ["HG201"]),
        ({"eval__configs__a_dot_yaml": "amp: true\n", "eval__b_dot_py": "1"}, []),
    ],
)
def test_a_switch_is_on_for_those_who_use_a_file(
    tmp_path: Path, files: dict[str, str], wanted: list[str]
) -> None:
    whole = project(tmp_path, **{"train_dot_py": MAIN, "other_dot_py": "1", **files})
    assert codes(MAIN, whole, str(tmp_path / "train.py")) == wanted


def test_a_project_that_trains_in_bfloat16_has_no_float16(tmp_path: Path) -> None:
    train = (
        "import model\nscaler = GradScaler()\nloss.backward()\n"
        "with torch.autocast('cuda', dtype=torch.{}):\n    model.Attention()\n"
    )
    for dtype, wanted in (("float16", True), ("bfloat16", False)):
        whole = project(tmp_path, train_dot_py=train.format(dtype), model_dot_py=ATTENTION)
        assert whole.may_call_in_half(str(tmp_path / "model.py")) is wanted


@each(
    ("files", "wanted"),
    [
        ({"predict_dot_py": "from ultralytics import YOLO\nYOLO().predict()\n"}, []),
        ({"main_dot_py": "from ultralytics import YOLO\nYOLO().train(data='a')\n"}, ["HG405"]),
        ({"setup_dot_py": "setup(name='ultralytics')"}, ["HG405"]),
        ({"setup_dot_py": "setup(name='mine')"}, []),
    ],
)
def test_a_copied_library_is_silent_unless_the_project_trains_with_it(
    tmp_path: Path, files: dict[str, str], wanted: list[str]
) -> None:
    text = SCALER + "Scaler()\n"
    whole = project(tmp_path, ultralytics__engine_dot_py=text, **files)
    assert codes(text, whole, str(tmp_path / "ultralytics/engine.py")) == wanted
    inside = tmp_path / "ultralytics"  # its own root
    assert codes(text, project(inside), str(inside / "engine.py")) == ["HG405"]
