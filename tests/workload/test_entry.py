"""An ENTRY is loaded, repeatably; and whatever is wrong with it is said in a sentence."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
import torch

from halfguard.errors import UsageError
from halfguard.workload import Workload, load

GOOD = """
import random
import torch
from torch import nn
from halfguard import Workload
from neighbour import WIDTH

def build(seed):
    model = nn.Sequential(nn.Linear(WIDTH, 4), nn.Dropout(0.5))
    data = [torch.randn(2, WIDTH) + random.random() for _ in range(3)]
    return Workload(model, lambda m, x: m(x).square().mean(), data, torch.optim.SGD(model.parameters(), 0.1))

def wrong(seed):
    return 3

def broken(seed):
    return helper(seed)

def helper(seed):
    return nn.Linear(-1, 2)(torch.ones(1)) + missing

def exits(seed):
    raise SystemExit("usage: train.py")

NUMBER = 1

def without_seed():
    return build(0)

def two(seed, size):
    return build(seed)

def more(*seeds, size=3):
    return build(*seeds)

def without_batches(seed):
    return Workload(nn.Linear(1, 1), None, [], None)

def short_loader(seed):
    data = torch.utils.data.DataLoader(range(3), batch_size=4, drop_last=True)
    return Workload(nn.Linear(1, 1), None, data, None)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").write_text("WIDTH = 3\n")
    path = tmp_path / "my_job.py"
    path.write_text(GOOD)
    return path


def parameters(workload: Workload) -> list[torch.Tensor]:
    return [*workload.model.parameters(), *workload.take(3)]


def test_loading_twice_and_fresh_give_the_same(file: Path) -> None:
    path = list(sys.path)
    one, two = load(f"{file}:build", 7), load(f"{file}:build", 7)
    three = one.fresh()
    other = load(f"{file}:build", 8)
    assert one.seed == three.seed == 7
    assert one.model is not two.model
    for same in (two, three):
        assert all(map(torch.equal, parameters(one), parameters(same)))
    assert not all(map(torch.equal, parameters(one), parameters(other)))
    assert sys.path == path


def test_any_function_that_can_be_called_with_a_seed_will_do(file: Path) -> None:
    assert load(f"{file}:more", 5).seed == 5


def test_a_module_by_its_dotted_name() -> None:
    assert isinstance(load("examples.overflowing:t5", 0), Workload)


def test_a_workload_made_by_hand_is_copied(file: Path) -> None:
    one = load(f"{file}:build")
    one.remake = None
    two = one.fresh()
    held = {id(p) for group in two.optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in two.model.parameters()}
    assert not held & {id(p) for p in one.model.parameters()}


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("{file}", "is not an ENTRY"),
        ("{file}:", "is not an ENTRY"),
        ("{file}:a b", "is not an ENTRY"),
        ("nowhere/job.py:build", "the file 'nowhere/job.py' does not exist"),
        ("no.such.module:build", "the module 'no.such.module' does not exist"),
        ("{file}:biuld", "there is no function 'biuld'.*\nDid you mean: build"),
        ("{file}:NUMBER", "NUMBER is a int, not a function"),
        ("{file}:wrong", "returned a int, not a Workload"),
        (
            "{file}:broken",
            r"raised RuntimeError: .*\(in helper, at .*my_job\.py:20: return nn\.Linear",
        ),
        ("{file}:exits", "raised SystemExit: usage: train.py"),
        (
            "{file}:without_seed",
            r"the seed, but it is defined as without_seed\(\)\..*Define it as: def without_seed\(seed\)",
        ),
        ("{file}:two", r"it is defined as two\(seed, size\)"),
        ("{file}:without_batches", "without batches.*Give it at least one"),
        ("{file}:short_loader", "without batches.*drop_last=True"),
    ],
)
def test_a_wrong_entry(file: Path, entry: str, says: str) -> None:
    with pytest.raises(UsageError, match=f"(?s){says}"):
        load(entry.format(file=file))


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def f(:\n", r"Importing job\.py raised SyntaxError.*job\.py:1"),
        ("import nothing_like_this", "ModuleNotFoundError: No module named 'nothing_like_this'"),
        ("x = 1 / 0", r"ZeroDivisionError: .* at .*job\.py:1: x = 1 / 0"),
    ],
)
def test_a_file_that_cannot_be_imported(tmp_path: Path, source: str, says: str) -> None:
    (tmp_path / "job.py").write_text(source)
    for _ in range(2):  # a failed import is not remembered
        with pytest.raises(UsageError, match=f"(?s){says}"):
            load(f"{tmp_path}/job.py:f")


def job(batches: object) -> Workload:
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return Workload(model, lambda m, x: m(x).mean(), batches, optimizer)  # type: ignore[arg-type]


def test_batches_start_again(seed: object) -> None:
    assert list(job([1, 2, 3]).take(7)) == [1, 2, 3, 1, 2, 3, 1]
    assert list(job(lambda: iter([1, 2])).take(3)) == [1, 2, 1]
    assert list(job(iter([1, 2])).take(2)) == [1, 2]


@pytest.mark.parametrize("batches", [[], iter([1, 2]), (x for x in [1])])
def test_batches_that_end_and_cannot_start_again(batches: object, seed: object) -> None:
    with pytest.raises(UsageError, match="cannot be restarted"):
        list(job(batches).take(3))


def test_other_mistakes(seed: object) -> None:
    with pytest.raises(UsageError, match="cannot be iterated"):
        list(job(3).take(1))
    wrong = job([torch.ones(2, 1)])
    wrong.loss = lambda m, x: m(x)  # type: ignore[no-any-return]
    with pytest.raises(UsageError, match=r"tensor of shape \[2, 1\]"):
        wrong.loss_of(torch.ones(2, 1))
    wrong.loss = lambda m, x: {"los": m(x).mean()}
    with pytest.raises(UsageError, match="a mapping with 'los'"):
        wrong.loss_of(torch.ones(2, 1))
    wrong.model.extra = wrong.model(torch.ones(1))  # not a leaf
    with pytest.raises(UsageError, match="Cannot copy"):
        wrong.fresh()


def test_the_random_state_of_the_caller_is_kept(file: Path) -> None:
    before, python = torch.get_rng_state(), random.getstate()
    load(f"{file}:build", 3).fresh()
    assert torch.equal(before, torch.get_rng_state())
    assert python == random.getstate()
