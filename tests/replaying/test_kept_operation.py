"""An operation that is kept with its inputs: its results in other precisions, and files that are refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from halfguard.errors import RecordError
from halfguard.replaying.kept_operation import (
    INPUTS_FILE,
    MAX_BYTES,
    OPERATION_FILE,
    can_be_kept,
    keep_operation,
    run_kept_operation,
)
from tests.support.cases import each

aten = torch.ops.aten


def test_an_overflow_is_finite_in_wider_formats(tmp_path: Path) -> None:
    x = torch.tensor([1.0, 12.0, -3.0], dtype=torch.float16)
    assert keep_operation(tmp_path, aten.exp.default, (x,), {}, "float16")
    half, single, double = run_kept_operation(tmp_path)
    assert (half.precision, half.as_it_ran, half.not_finite, half.elements) == (
        "float16",
        True,
        1,
        3,
    )
    assert (single.precision, single.not_finite) == ("float32", 0)
    assert double.high == pytest.approx(162754.79, abs=0.01)


def test_an_operation_that_writes_gives_what_it_wrote(tmp_path: Path) -> None:
    weight, numerator = torch.ones(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16)
    args = (weight, numerator, numerator.clone())
    assert keep_operation(tmp_path, aten.addcdiv_.default, args, {"value": -0.1}, "bfloat16")
    runs = run_kept_operation(tmp_path)
    assert [run.precision for run in runs] == ["float16", "bfloat16", "float32", "float64"]
    assert {run.not_finite for run in runs} == {2}
    assert torch.equal(weight, torch.ones(2, dtype=torch.bfloat16))


def test_settings_and_lists_are_kept(tmp_path: Path) -> None:
    x = torch.full((4, 4), 300.0, dtype=torch.float16)
    assert keep_operation(tmp_path, aten.sum.dim_IntList, (x, [0], True), {}, "float16")
    assert run_kept_operation(tmp_path)[0].high == 1200
    kwargs = {"dtype": torch.float16, "device": torch.device("cpu"), "layout": torch.strided}
    assert keep_operation(tmp_path, aten._to_copy.default, (x.float() * 300,), kwargs, "float16")
    half, single, _ = run_kept_operation(tmp_path)
    assert (half.not_finite, single.not_finite, single.high) == (16, 0, 90000)


def test_random_and_large_operations_are_not_kept() -> None:
    x = torch.ones(4)
    assert can_be_kept(aten.exp.default, (x,), {})
    assert not can_be_kept(aten.native_dropout.default, (x, 0.5, True), {})
    assert not can_be_kept(aten.ones.default, ([4],), {})
    large = torch.empty(MAX_BYTES // 4 + 1, device="meta")
    assert not can_be_kept(aten.exp.default, (large,), {})


def test_a_folder_without_an_operation_has_no_runs(tmp_path: Path) -> None:
    assert run_kept_operation(tmp_path) == ()


@each(
    ("field", "value"),
    [
        ("name", "from_file"),
        ("name", "__class__"),
        ("name", "bernoulli"),
        ("overload", "no_such"),
        ("arguments", {"type": "list", "items": []}),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, field: str, value: object) -> None:
    keep_operation(tmp_path, aten.exp.default, (torch.ones(2),), {}, "float32")
    body = json.loads((tmp_path / OPERATION_FILE).read_text())
    (tmp_path / OPERATION_FILE).write_text(json.dumps(body | {field: value}))
    with pytest.raises(RecordError):
        run_kept_operation(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [OPERATION_FILE, INPUTS_FILE]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    keep_operation(tmp_path, aten.exp.default, (torch.ones(2),), {}, "float32")
    (tmp_path / INPUTS_FILE).rename(tmp_path / "elsewhere")
    (tmp_path / INPUTS_FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RecordError, match="regular file"):
        run_kept_operation(tmp_path)


X = {"type": "tensor", "name": "x"}
HARMLESS = torch.ones(2, 2)


def _write(
    folder: Path, name: str, overload: str, args: object, kwargs: Sequence[object] = ()
) -> None:
    keep_operation(folder, aten.exp.default, (HARMLESS,), {}, "float32")
    save_file({"x": HARMLESS}, folder / INPUTS_FILE)
    body = json.loads((folder / OPERATION_FILE).read_text())
    items = [["args", args], ["kwargs", {"type": "list", "items": list(kwargs)}]]
    given = {"name": name, "overload": overload, "arguments": {"type": "dict", "items": items}}
    (folder / OPERATION_FILE).write_text(json.dumps(body | given))


def _pair(name: str, value: object) -> dict[str, object]:
    return {"type": "list", "items": [name, value]}


@pytest.mark.parametrize(
    ("name", "overload", "args", "kwargs", "why"),
    [
        ("from_file", "out", ["made.bin", True, 4], [_pair("out", X)], "not among the operations"),
        ("segment_reduce", "default", [X, "sum"], [_pair("unsafe", True)], "not among"),
        ("max_pool2d_with_indices_backward", "default", [X], [], "not among"),
        ("exp", "out", [X], [_pair("out", X)], "writes to its arguments|not among"),
        ("native_dropout", "default", [X, 0.5, True], [], "random"),
        ("gelu", "default", [X], [_pair("approximate", "tanh")], "text"),
        ("full_like", "default", [5, 1.0], [], "no tensor"),
        ("exp", "default", [X, X], [], "these arguments"),
        ("exp", "default", [X], [_pair("other", 1)], "these arguments"),
        ("mm", "default", [X], [], "mat2 is missing"),
        ("mm", "default", [X, 5], [], "fails with the inputs"),
        ("eq", "Tensor", [X, X], [], "no floating-point numbers"),
        ("exp", "default", [{"type": "object", "fields": []}], [], "damaged"),
        (
            "_to_copy",
            "default",
            [X],
            [
                _pair(
                    "layout",
                    {"type": "dict", "items": [["torch", "layout"], ["name", "sparse_coo"]]},
                )
            ],
            "layout",
        ),
    ],
)
def test_a_file_that_asks_for_more_than_numbers_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    overload: str,
    args: list[object],
    kwargs: list[object],
    why: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    _write(tmp_path, name, overload, {"type": "list", "items": args}, kwargs)
    with pytest.raises(RecordError, match=why):
        run_kept_operation(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [OPERATION_FILE, INPUTS_FILE]


def test_arguments_that_are_no_list_are_refused(tmp_path: Path) -> None:
    _write(tmp_path, "exp", "default", 5)
    with pytest.raises(RecordError, match="cannot be read"):
        run_kept_operation(tmp_path)


def test_complex_results_are_counted_by_their_parts(tmp_path: Path) -> None:
    assert keep_operation(
        tmp_path, aten._fft_r2c.default, (torch.ones(4), [0], 0, True), {}, "float32"
    )
    single = next(run for run in run_kept_operation(tmp_path) if run.precision == "float32")
    assert (single.elements, single.high) == (6, 4.0)


SQUARE = torch.ones(2, 2)
ALLOWED: dict[str, tuple[Any, ...]] = {
    "log": (SQUARE,),
    "exp": (SQUARE,),
    "sqrt": (SQUARE,),
    "rsqrt": (SQUARE,),
    "mm": (SQUARE, SQUARE),
    "bmm": (SQUARE[None], SQUARE[None]),
    "addmm": (SQUARE, SQUARE, SQUARE),
    "baddbmm": (SQUARE[None], SQUARE[None], SQUARE[None]),
    "convolution": (
        SQUARE[None, None],
        SQUARE[None, None],
        None,
        [1, 1],
        [0, 0],
        [1, 1],
        False,
        [0, 0],
        1,
    ),
    "pow.Tensor_Scalar": (SQUARE, 2),
    "div.Tensor": (SQUARE, SQUARE),
    "div_.Tensor": (SQUARE, SQUARE),
    "mul.Tensor": (SQUARE, SQUARE),
    "add.Tensor": (SQUARE, SQUARE),
    "sum": (SQUARE,),
    "sum.dim_IntList": (SQUARE, [0]),
    "mean": (SQUARE,),
    "mean.dim": (SQUARE, [0]),
    "_softmax": (SQUARE, -1, False),
    "_log_softmax": (SQUARE, -1, False),
    "_softmax_backward_data": (SQUARE, SQUARE, -1, torch.float32),
    "native_layer_norm": (SQUARE, [2], None, None, 1e-5),
    "_to_copy": (SQUARE,),
    "nll_loss_forward": (SQUARE, torch.zeros(2, dtype=torch.long), None, 1, -100),
    "mse_loss": (SQUARE, SQUARE),
    "linalg_vector_norm": (SQUARE,),
    "_foreach_addcdiv_.ScalarList": ([SQUARE], [SQUARE], [SQUARE], [-0.1]),
}


@each("name", ALLOWED)
def test_what_makes_bad_numbers_is_kept_and_runs(tmp_path: Path, name: str) -> None:
    packet, _, overload = name.partition(".")
    func = getattr(getattr(aten, packet), overload or "default")
    assert keep_operation(tmp_path, func, ALLOWED[name], {}, "float32")
    runs = {run.precision: run for run in run_kept_operation(tmp_path)}
    assert runs["float32"].elements
    assert not runs["float32"].note
    assert torch.equal(SQUARE, torch.ones(2, 2))


def test_nothing_is_kept_that_would_not_be_run(tmp_path: Path) -> None:
    refused: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (aten.gelu.default, (SQUARE,), {"approximate": "tanh"}),
        (aten.exp.out, (SQUARE,), {"out": SQUARE}),
        (aten.native_layer_norm_backward.default, (SQUARE,) * 7, {}),
        (aten.segment_reduce.default, (SQUARE, "sum"), {}),
        (aten.native_dropout.default, (SQUARE, 0.5, True), {}),
    ]
    for func, args, kwargs in refused:
        assert not can_be_kept(func, args, kwargs)
        assert not keep_operation(tmp_path, func, args, kwargs, "float32")
    assert not list(tmp_path.iterdir())
