"""Many cases in one test, and few cells instead of a product."""

from __future__ import annotations

import inspect
import itertools
from pathlib import Path

import pytest
import torch

from tests.support.cases import each, each_case
from tests.support.pairs import all_pairs, parametrize_pairs


def run(names: tuple[str, ...], ran: list[str]) -> None:
    with each_case() as case:
        for name in names:
            with case(name):
                ran.append(name)
                assert name != "wrong"
                if name == "silent":
                    with pytest.raises(ValueError, match="never"):
                        pass
                if name == "broken":
                    raise KeyError(name)


def test_every_case_runs_and_each_failure_is_named() -> None:
    names, ran = ("good", "wrong", "silent", "broken"), list[str]()
    with pytest.raises(pytest.fail.Exception) as caught:
        run(names, ran)
    assert ran == list(names)
    message = str(caught.value)
    assert "3 of 4 cases failed" in message
    assert all(f"{name}:\n" in message for name in names[1:])
    assert "good:" not in message


def test_a_loop_without_a_case_fails() -> None:
    with pytest.raises(pytest.fail.Exception, match="no case"):
        run((), [])


def test_each_is_parametrize_in_one_test(tmp_path: Path) -> None:
    seen, bad = [], "wrong"

    @each("b", [1, 2])
    @each(("a", "word"), [pytest.param(1, "x", id="one"), (2, bad)])
    def test(a: int, word: str, b: int, tmp_path: Path) -> None:
        seen.append((b, a, word, torch.rand(1).item(), tmp_path.exists(), list(tmp_path.iterdir())))
        (tmp_path / "left").touch()
        assert word != bad

    assert list(inspect.signature(test).parameters) == ["tmp_path"]
    state = torch.get_rng_state()
    with pytest.raises(pytest.fail.Exception, match=r"2 of 2 cases failed(.|\n)*1 of 2 cases"):
        test(tmp_path=tmp_path)
    torch.set_rng_state(state)
    assert [row[:3] for row in seen] == [(1, 1, "x"), (1, 2, bad), (2, 1, "x"), (2, 2, bad)]
    assert len({row[3] for row in seen}) == 1
    assert all(exists and empty == [] for *_, exists, empty in seen)


def test_a_case_that_is_skipped_leaves_the_others() -> None:
    ran = []

    @each("name", ["first", "second"])
    def test(name: str, missing: tuple[str, ...]) -> None:
        if name in missing:
            pytest.skip("not here")
        ran.append(name)

    test(missing=("first",))
    assert ran == ["second"]
    with pytest.raises(pytest.skip.Exception, match="first: not here; second: not here"):
        test(missing=("first", "second"))


AXES = {"fault": list(range(7)), "model": "ab", "optimizer": "xyz", "accumulate": (1, 4)}


def test_all_pairs_are_covered_by_few_cells() -> None:
    axes = [*AXES.values(), ["skip", "retry", "roll back", "halt"]]
    cells = all_pairs(axes)
    assert cells == all_pairs(axes)
    assert 28 <= len(cells) <= 32  # no fewer than the product of the longest two
    for i, j in itertools.combinations(range(len(axes)), 2):
        assert {(c[i], c[j]) for c in cells} == set(itertools.product(axes[i], axes[j]))


def test_the_product_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALFGUARD_CELLS", "all")
    names, cells = parametrize_pairs(**AXES).args
    assert names == tuple(AXES)
    assert [cell.values for cell in cells] == list(itertools.product(*AXES.values()))


def test_a_cell_has_the_marks_of_its_values() -> None:
    slow = pytest.param("b", marks=pytest.mark.slow)
    _, cells = parametrize_pairs(first=["a", slow], second=[1, 2]).args
    found = [(cell.values, [mark.name for mark in cell.marks]) for cell in cells]
    assert found == [
        (("a", 1), []),
        (("a", 2), []),
        (("b", 1), ["slow"]),
        (("b", 2), ["slow"]),
    ]
