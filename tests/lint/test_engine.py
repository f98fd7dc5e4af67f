"""The engine: settings, files, comments, odd input."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfguard.errors import ConfigError, UsageError
from halfguard.lint.files import find_files
from halfguard.lint.run import Linter, run_files
from halfguard.lint.settings import Settings, load_settings
from tests.lint.helper import codes, fix, lint
from tests.support.cases import each

BAD = "import torch\nx = y.masked_fill(m, -1e9){}\n"


@each(
    ("comment", "silent"),
    [
        ("  # halfguard: ignore[HG101]", True),
        ("  # halfguard: ignore", True),
        ("  # noqa # halfguard: ignore[HG201, hg101]", True),
        ("  # halfguard: ignore[HG104]", False),
        ("  # noqa", True),
        ("  # NOQA: a mask of our own", True),
        ("  # noqa: HG101", True),
        ("  # noqa: E501, HG101", True),
        ("  # noqa: E501 HG101", True),
        ("  # noqa: E501", False),
        ("  # noqa: HG10", False),
        ("  # ignore", False),
    ],
)
def test_comments_silence(comment: str, silent: bool) -> None:
    assert (codes(BAD.format(comment)) == []) == silent


@each(
    ("settings", "on"),
    [
        (Settings(select=("HG1",)), True),
        (Settings(select=("HG2",)), False),
        (Settings(ignore=("HG101",)), False),
        (Settings(select=("HG101",), ignore=("HG1",)), True),
        (Settings(select=("ALL",), ignore=("HG1",)), False),
        (Settings(per_file_ignores={"code.py": ("HG1",)}), False),
        (Settings(per_file_ignores={"tests/*": ("HG1",)}), True),
    ],
)
def test_select_and_ignore(settings: Settings, on: bool) -> None:
    assert bool(lint(BAD.format(""), settings=settings)) == on


OLD = (
    "import torch\na = torch.cuda.amp.GradScaler(){}\nb = torch.cuda.amp.autocast(a.is_enabled())\n"
)


def test_deprecated_names_are_reported_once_per_file() -> None:
    (found,) = lint(OLD.format(""))
    assert (found.code, found.line) == ("HG405", 2)
    assert found.message.endswith('use torch.amp.GradScaler("cuda"). 1 more in this file.')
    fixed = fix(OLD.format(""), "safe")
    assert (fixed.applied, fixed.data.count(b"torch.amp."), fixed.remaining) == (1, 2, [])


def test_a_comment_silences_one_deprecated_name_only() -> None:
    (found,) = lint(OLD.format("  # noqa: HG405"))
    assert (found.line, "more" in found.message) == (3, False)


def test_a_deprecated_name_inside_another_is_fixed_in_the_next_pass() -> None:
    text = "import torch\ntorch.cuda.amp.autocast(torch.cuda.amp.GradScaler().is_enabled())\n"
    wanted = 'torch.amp.autocast("cuda", enabled=torch.amp.GradScaler("cuda").is_enabled())\n'
    assert fix(text, "safe").data.decode() == f"import torch\n{wanted}"


def test_settings_are_found_above(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.halfguard.lint]\nignore = ["HG1"]\nexclude = ["old"]\n'
        '[tool.halfguard.lint.per-file-ignores]\n"tests/*" = ["HG2"]\n'
    )
    folder = tmp_path / "a/b"
    folder.mkdir(parents=True)
    settings = load_settings(folder)
    assert settings.ignore == ("HG1",)
    assert settings.ignored_in(str(tmp_path / "tests/test_x.py")) == ("HG2",)
    assert settings.excludes(tmp_path / "old/x.py")


def test_a_removed_rule_may_be_ignored_and_not_selected() -> None:
    assert lint(BAD.format(""), settings=Settings(ignore=("HG102", "HG5")))
    with pytest.raises(UsageError, match="HG102 was removed: 'halfguard why"):
        Settings(select=("HG102",)).rules()


@each("text", ['select = ["HG999"]', 'colour = "red"', "select = 3", "exclude = [[]]"])
def test_wrong_settings_are_a_usage_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.halfguard.lint]\n{text}\n")
    with pytest.raises((ConfigError, UsageError)):
        load_settings(tmp_path)


@pytest.mark.parametrize(
    ("key", "meant"), [("selct", "select"), ("per_file_ignores", "per-file-ignores")]
)
def test_a_misspelt_setting_is_answered_with_the_one_that_may_be_meant(
    tmp_path: Path, key: str, meant: str
) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.halfguard.lint]\n{key} = []\n")
    with pytest.raises(ConfigError) as caught:
        load_settings(tmp_path)
    assert caught.value.cure.startswith(f"Did you mean {meant}? Allowed keys: select, ignore,")


def test_folders_that_are_not_ours_are_passed_over_unless_named(tmp_path: Path) -> None:
    for name in (
        "src/a.py",
        ".venv/lib/site-packages/torch/b.py",
        "build/c.py",
        "conf/d.yaml",
        "e.txt",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = find_files([tmp_path], Settings())
    assert [p.name for p in found] == ["a.py"]
    inside = tmp_path / ".venv/lib/site-packages"
    assert [p.name for p in find_files([inside], Settings())] == ["b.py"]
    with pytest.raises(UsageError, match="does not exist"):
        find_files([tmp_path / "nothing"], Settings())
    with pytest.raises(UsageError, match=r"d.yaml is not a Python file"):
        find_files([tmp_path / "conf/d.yaml"], Settings())


def test_a_file_and_a_link_to_it_are_one(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/z.py").touch()
    (tmp_path / "a.py").symlink_to(tmp_path / "src/z.py")
    (tmp_path / "linked").symlink_to(tmp_path / "src")
    assert find_files([tmp_path], Settings()) == [tmp_path / "src/z.py"]
    both = [tmp_path / "linked", tmp_path / "src"]
    assert len(find_files(both, Settings())) == 1
    assert len(find_files([tmp_path / "a.py", tmp_path / "src/z.py"], Settings())) == 1


def test_files_are_checked_in_order(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"f{number}.py").write_text(BAD.format("") if number == 1 else "x = 1\n")
    files = find_files([tmp_path], Settings())
    counted: list[int] = []
    results = list(run_files(Linter(Settings()), files, advance=counted.append))
    assert [Path(r.path) for r in results] == files
    assert [len(r.diagnostics) for r in results] == [0, 1, 0]
    assert counted == [1, 1, 1]


@each(
    "data",
    [
        b"import torch\nx = y.masked_fill(m, -1e9)\n\x00",
        b"# coding: nonsense\nimport torch\nmasked_fill 1e9",
        b"import torch\nmasked_fill 1e9 \xff\xfe",
        b"import torch\nx = y.masked_fill(m, " + b"-" * 100_000 + b"1e9)\n",
        b"import torch\nx = " + b"(" * 5000 + b"masked_fill, 1e9" + b")" * 5000,
        b"import torch\nx = y.masked_fill(m, 1e9)" + b".a" * 50_000,
        b"import torch\nx = masked_fill[1e9]" + b"[0]" * 20_000,
        b"import torch\n" + b"\n".join(b" " * n + b"if masked_fill:1e9" for n in range(150)),
    ],
)
def test_what_cannot_be_read_is_reported_and_survived(data: bytes) -> None:
    assert set(codes(data)) <= {"HG001", "HG101"}
    assert codes(data), "it was looked at"


def test_a_cell_of_a_notebook_is_not_reported() -> None:
    for cell in (
        "%%file train.py\nimport torch\n",
        "!pip install apex\nimport torch\namp.initialize()\n",
    ):
        text = f"{cell}scaler = torch.cuda.amp.GradScaler()\n"
        assert codes(text) == []
