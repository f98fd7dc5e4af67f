"""How a project trains, read from the bytes of all its files.

A loss function in a file of its own does not show its precision; a file that trains in float16 and imports
it, directly or through others, does. A file that no such file imports is not taken for float16.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from halfguard.lint.imports import Imports
from halfguard.lint.requirements import Version, read_torch
from halfguard.lint.switches import Switches

_PACKAGE = ("pyproject.toml", "setup.py", "setup.cfg")
_READ = (
    ".py", ".yaml", ".yml", ".sh", ".slurm", ".sbatch", ".bat", ".json", ".md", ".rst", ".toml", ".cfg",
    ".ipynb", "Pipfile",
)  # fmt: skip
_MAX_FILES = 20_000
_MAX_BYTES = 2_000_000
_BESIDE = re.compile(
    r"(third_?-?part(y|ies)|3rd_?party|vendor(ed|s)?|externals?|submodules?|old|archived?|deprecated"
    r"|tests?|demos?|templates?)",
    re.I,
)

# Texts that a file may contain, each with the pattern that then proves autocast to float16, by torch or by a
# framework; an empty one means that the text is proof. A text is searched much faster than a pattern with
# alternatives, and a pattern begins with its text where it can, because re then searches for that.
_HALF: tuple[tuple[bytes, bytes], ...] = (
    (b"GradScaler", b""),  # bfloat16 needs none
    (b"cuda.amp", b""),
    (b"amp.initialize", b""),
    (b".half()", rb"model\w*\.half\(\)"),
    (b"16-mixed", rb"16-mixed[\"'](?<=[\"']16-mixed.)"),
    (b"precision", rb"precision\s*[=:]\s*[\"']?16\b"),
    (b"mixed_precision", rb"mixed_precision\s*[=:(,]+\s*[\"']?fp16"),
    (b"fp16", rb"fp16(?<=\bfp16)\s*[=:]\s*[Tt]rue"),
    (b"autocast(", rb"autocast\((?:[^)\n]*[^b]float16|\s*[\"']cuda[\"']\s*\))"),
)
_BFLOAT16 = re.compile(rb"\bdtype[\"']?\s*[:=]\s*torch\.bfloat16")
_FLOAT16 = re.compile(rb"(?<!b)float16|torch\.half\b")
_RESUMES = re.compile(rb"opt\w*(?:\[[^\]\n]*\]|\.optimizer)?\.load_state_dict\(")
# Packages that other projects copy into theirs.
_COPIED = (
    "monai", "detectron2", "mmcv", "mmdet", "mmseg", "mmengine", "fairseq", "apex", "timm", "transformers",
    "diffusers", "peft", "ultralytics",
)  # fmt: skip
_RANKS = re.compile(
    rb"torchrun|torch\.distributed\.(launch|run)|mpirun|\bsrun\b|mp\.spawn|multiprocessing\.spawn|nproc_per_node"
    rb"|accelerate launch"
)
_DEPTH = 2  # imports between a file that trains and one that it calls; packages do not count


@dataclass(frozen=True)
class Project:
    """Facts about the files of one project; a single file without one may be anything."""

    lone: bool = True  # nothing but the file itself is known
    root: str = ""  # its folder
    resumes: frozenset[str] = frozenset()  # modules that load the state of an optimizer
    pins: tuple[tuple[str, Version], ...] = ()  # folders, and the torch that they require
    least: Version | None = None  # the oldest torch that is required
    called_in_half: frozenset[str] = frozenset()  # files that one which trains in float16 imports
    imports: Imports = field(default_factory=lambda: Imports({}), compare=False, repr=False)
    switches: Switches = field(default_factory=Switches, compare=False, repr=False)
    copies: frozenset[str] = frozenset()  # folders with a library that the project does not package

    def may_call_in_half(self, path: str) -> bool:
        """Return whether a file is one that trains in float16, or is imported by it."""
        return self.lone or os.path.abspath(path) in self.called_in_half  # noqa: PTH100

    def may_be_on(self, switch: str, path: str) -> bool:
        """Return whether something turns a switch of a file on; an empty one stands for any of precision."""
        return self.lone or self.switches.is_on(switch, Path(path).absolute())

    def values(self, name: str, path: str) -> list[str]:
        """Return the literals that the files of the project give a setting of a file."""
        return self.switches.values(name, Path(path).absolute())

    def is_commanded(self, path: str) -> bool:
        """Return whether a text of the project names a program that can run and uses a file."""
        return self.imports.is_commanded(Path(path).absolute())

    def is_named(self, path: str) -> bool:
        """Return whether a text of the project names a file as a program."""
        return Path(path).absolute() in self.imports.named

    def calls(self, name: str) -> bool:
        """Return whether something in the project calls a function of a name."""
        call = re.compile(rb"(?<!def )\b" + name.encode() + rb"\(")
        return any(name.encode() in d and call.search(d) for d in self.imports.sources.values())

    @cached_property
    def starts_ranks(self) -> bool:
        """Whether a command or a script starts several ranks."""
        return any(map(_RANKS.search, self.switches.contents.values()))

    def requires_at_least(self, version: Version) -> bool:
        """Return whether the project names a torch, and no older one."""
        return self.least is not None and self.least >= version

    def requires_before(self, version: Version, path: str) -> bool:
        """Return whether the requirements nearest to a file, or else any other ones, name an older torch."""
        file = os.path.abspath(path)  # noqa: PTH100
        around = [folder for folder, _ in self.pins if file.startswith(folder + os.sep)]
        nearest = max(around, key=len, default=None)
        return any(p < version for folder, p in self.pins if nearest in (None, folder))

    def is_beside(self, path: str) -> bool:
        """Return whether a file is a copy, is kept from an earlier time, or tests or shows others."""
        file = os.path.abspath(path)  # noqa: PTH100
        if self.lone or not file.startswith(self.root):
            return False
        folders = Path(file[len(self.root) :]).parent.parts
        if any(map(_BESIDE.fullmatch, folders)) or Path(file).name.startswith("test_"):
            return True
        return any(file.startswith(folder + os.sep) for folder in self.copies)


UNKNOWN = Project()


def find_root(path: Path) -> Path | None:
    """Return the folder of the repository that a path belongs to, or of the nearest package around it."""
    folders = [path.absolute(), *path.absolute().parents]
    for markers in ((".git",), _PACKAGE):
        for folder in folders:
            if any((folder / marker).exists() for marker in markers):
                return folder
    return path if path.is_dir() else None


def shows_half(data: bytes) -> bool:
    """Return whether a file proves autocast to float16."""
    return any(text in data and (not proof or re.search(proof, data)) for text, proof in _HALF)


def read_project(files: Iterable[tuple[Path, bytes]], root: Path = Path()) -> Project:
    """Read the facts of a project from its files."""
    contents: dict[Path, bytes] = {}
    configured = False
    required: list[tuple[str, Version, bool]] = []
    for path, data in files:
        if len(data) > _MAX_BYTES:
            continue
        contents[path.absolute()] = data
        if path.suffix not in (".py", ".json") or path.name == "setup.py":
            required += [(str(path.absolute().parent), *one) for one in read_torch(data, path.name)]
        configured |= path.suffix in (".yaml", ".yml") and shows_half(data)
    sources = {path: data for path, data in contents.items() if path.suffix == ".py"}
    loading = (p for p, d in sources.items() if b".load_state_dict(" in d and _RESUMES.search(d))
    resumes = frozenset(path.stem for path in loading)
    # Where a framework reads the precision from a file, all that trains is started by it.
    half = [
        p for p, d in sources.items()
        if _trains(d) and (configured or shows_half(d)) and not is_only_bfloat16(d)
    ]  # fmt: skip
    imports = Imports(contents, root.absolute())
    called = frozenset(map(str, imports.reached(half, _DEPTH)))
    pins = tuple((folder, version) for folder, version, is_least in required if not is_least)
    least = min((version for _, version, _ in required), default=None)
    return Project(
        lone=False, called_in_half=called, resumes=resumes, imports=imports,
        switches=Switches(contents, imports), pins=pins, least=least, root=str(root.absolute()),
        copies=_copies(contents, root.absolute()),
    )  # fmt: skip


def _copies(contents: dict[Path, bytes], root: Path) -> frozenset[str]:
    """Return the folders of libraries that a project holds beside its own code, and imports.

    A library has a file that installs it, in a folder of its own, or a name that is well known.
    """
    packages = {path.parent for path in contents if path.name in _PACKAGE}
    sources = {path: data for path, data in contents.items() if path.suffix == ".py"}
    known = {p.parent for p in sources if p.parent.name in _COPIED and root in p.parent.parents}
    known = {
        folder for folder in known
        if folder.parent / "__init__.py" not in sources
        and not _is_own(folder, contents) and not _trains_with(folder, sources)
    }  # fmt: skip
    inner = {folder for folder in packages if root in folder.parents}
    return frozenset(map(str, known | {f for f in inner if _is_imported(f, sources)}))


def _is_own(folder: Path, contents: dict[Path, bytes]) -> bool:
    """Return whether a project that is called like a folder packages it."""
    name = re.compile(rb"\bname\s*=\s*[\"']?" + folder.name.encode() + rb"\b")
    installing = [contents.get(above / file) for above in folder.parents for file in _PACKAGE]
    return any(name.search(data) for data in installing if data)


def _trains_with(folder: Path, sources: dict[Path, bytes]) -> bool:
    """Return whether code outside of a folder trains with its library: ``YOLO(...).train(data=...)``."""
    used = re.compile(rb"^[ \t]*(?:from|import)[ \t]+" + folder.name.encode() + rb"\b", re.M)
    return any(
        used.search(data) and re.search(rb"\.train\([^)]*\bdata=", data)
        for path, data in sources.items()
        if folder not in path.parents
    )


def _is_imported(folder: Path, sources: dict[Path, bytes]) -> bool:
    """Return whether code outside of a folder imports a package from it."""
    inside = {path for path in sources if folder in path.parents}
    packages = {p.parent for p in inside if p.name == "__init__.py"}
    names = {p.name.encode() for p in packages if p.parent == folder or p.parent.name == "src"}
    if not names:
        return False
    used = re.compile(
        rb"^[ \t]*(?:from|import)[ \t]+(?:" + b"|".join(map(re.escape, names)) + rb")\b", re.M
    )
    return any(used.search(data) for path, data in sources.items() if path not in inside)


def is_only_bfloat16(data: bytes) -> bool:
    """Return whether a file names bfloat16 as a dtype, and never float16."""
    return bool(_BFLOAT16.search(data)) and not _FLOAT16.search(data)


def _trains(data: bytes) -> bool:
    """Return whether a file has a training loop, or the optimizer of one."""
    return any(text in data for text in (b"optim", b".backward(", b"Trainer(", b"training_step"))


def is_about_setup(path: str) -> bool:
    """Return whether a file without a known ending says which torch a project needs."""
    is_list = path.endswith(".txt") and re.search(
        "require|constraint|environment|install", path, re.I
    )
    return bool(is_list or re.search("(^|/)(readme|install|[^/]*dockerfile)[^/]*$", path, re.I))


def project_files(root: Path, excluded: tuple[str, ...]) -> Iterator[Path]:
    """Yield the files of a project that tell how it trains, without hidden and excluded folders."""
    count = 0
    for parent, folders, files in os.walk(root):
        # A folder ``env`` may also hold the requirements.
        excludes = {*excluded} - ({"env"} if not os.path.exists(f"{parent}/env/lib") else set())  # noqa: PTH110
        folders[:] = sorted(n for n in folders if not n.startswith(".") and n not in excludes)
        for name in files:
            place = f"{Path(parent).name}/{name}"
            if name.endswith(_READ) or is_about_setup(place):
                count += 1
                if count > _MAX_FILES:
                    return
                yield Path(parent) / name
