"""Patches of a wrong order of calls: moved, left out, guarded."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfguard.repairs.casts import float_arguments
from halfguard.repairs.fp32_weights import fp32_weights
from halfguard.repairs.scaling import load_if_not_empty, unscale_once
from halfguard.repairs.steps import is_returned, optimizer_last, update_after_step
from tests.repairs.patched_script import at, patched, write

LOOP = """
for i, batch in enumerate(loader):
    scaler.scale(loss(batch)).backward()
    scaler.unscale_(opt)
    clip_grad_norm_(params, 1.0)
    if i % 4 == 3:
        scaler.step(opt)
        scaler.update()
"""


def test_unscaling_of_micro_batches_is_moved_to_the_step_with_its_clipping(script: Path) -> None:
    write(script, LOOP)
    text = patched(script, unscale_once(at(script, "unscale_")))
    assert text.endswith(
        "    if i % 4 == 3:\n        scaler.unscale_(opt)\n        clip_grad_norm_(params, 1.0)\n"
        "        scaler.step(opt)\n        scaler.update()\n"
    )
    assert text.count("unscale_") == 1


def test_a_second_unscaling_of_one_step_is_left_out(script: Path) -> None:
    write(script, "for b in data:\n    log()\n    s.unscale_(opt)\n    s.step(opt)\n")
    text = patched(script, unscale_once(at(script, "unscale_")))
    assert text == "for b in data:\n    log()\n    s.step(opt)\n"


def test_clipping_of_accelerate_waits_for_the_last_micro_batch(script: Path) -> None:
    write(
        script,
        """
        with acc.accumulate(model):
            acc.backward(loss)
            acc.clip_grad_norm_(model.parameters(), 1.0)
        """,
    )
    text = patched(script, unscale_once(at(script, "clip_grad_norm_")))
    assert "    if acc.sync_gradients:\n        acc.clip_grad_norm_(" in text


def test_an_unknown_loop_is_left_alone(script: Path) -> None:
    write(script, "engine.unscale_(opt)\nengine.run()\n")
    assert not unscale_once((str(script), 1))
    assert not update_after_step((str(script), 2))
    assert not load_if_not_empty((str(script), 2))


@pytest.mark.parametrize(
    ("steps", "after"), [("s.step(opt)", "    log()\n"), ("s.step(a)\n        s.step(b)", "")]
)
def test_the_update_follows_the_last_step_of_the_block(
    script: Path, steps: str, after: str
) -> None:
    head = f"for b in d:\n    if last:\n        {steps}\n"
    write(script, f"{head}        go()\n    s.update()\n{after}")
    text = patched(script, update_after_step(at(script, "s.update")))
    assert text == f"{head}        s.update()\n        go()\n{after}"


def test_the_update_stays_if_the_last_step_is_not_certain(script: Path) -> None:
    write(script, "if x:\n    s.step(a)\nif y:\n    s.step(b)\ns.update()\n")
    assert not update_after_step(at(script, "s.update"))


def test_an_optimizer_is_made_directly_before_its_first_use(script: Path) -> None:
    write(script, "opt = AdamW(\n    model.parameters(),\n)\nmodel.head = new()\nprepare(opt)\n")
    text = patched(script, optimizer_last(at(script, "AdamW")))
    assert text == "model.head = new()\nopt = AdamW(\n    model.parameters(),\n)\nprepare(opt)\n"


def test_an_optimizer_that_a_helper_returns_is_moved_where_it_gets_its_name(script: Path) -> None:
    write(
        script,
        """
        class Runner:
            def __init__(self):
                self.opt = self.build()
                self.prepare()

            def build(self):
                return AdamW(self.model.parameters())
        """,
    )
    assert is_returned(at(script, "AdamW"))
    text = patched(script, optimizer_last(at(script, "self.opt = self.build()")))
    assert "        self.prepare()\n        self.opt = self.build()\n" in text


def test_an_optimizer_that_is_used_at_once_stays(script: Path) -> None:
    write(script, "opt = AdamW(p)\nprepare(opt)\n")
    assert optimizer_last((str(script), 1)) == ""


def test_a_scalers_state_is_loaded_if_there_is_one(script: Path) -> None:
    write(script, 'scaler.load_state_dict(ckpt["scaler"])\n')
    text = patched(script, load_if_not_empty((str(script), 1)))
    assert text == 'if ckpt["scaler"]:\n    scaler.load_state_dict(ckpt["scaler"])\n'


def test_half_inputs_of_fp32_weights_are_cast(script: Path) -> None:
    write(script, "score = self.head(h).squeeze(-1)\n")
    error = "mat1 and mat2 must have the same dtype, but got Half and Float"
    text = patched(script, float_arguments((str(script), 1), error))
    assert text == "score = self.head(h.float()).squeeze(-1)\n"
    other = "mat1 and mat2 must have the same dtype, but got Float and Half"
    assert not float_arguments((str(script), 1), other)


def test_a_dtype_with_a_name_is_changed_where_it_is_given(script: Path) -> None:
    write(script, "import torch\ndtype = torch.float16\nvae.to(dtype)\n")
    text = patched(script, fp32_weights(at(script, "vae.to"), "bfloat16"))
    assert text == "import torch\ndtype = torch.float32\nvae.to(dtype)\n"


def test_a_dtype_that_a_caller_gives_is_changed_there(script: Path) -> None:
    write(
        script,
        """
        import torch
        def build(dtype=torch.float32):
            return Net().to(dtype)
        net = build(dtype=torch.float16)
        """,
    )
    callers = (at(script, "net = build"),)
    patch = fp32_weights(at(script, "return Net"), "float16", callers)
    assert "net = build(dtype=torch.float32)\n" in patched(script, patch)


def test_weights_without_autocast_get_inputs_in_fp32(script: Path) -> None:
    write(script, "import torch\nvae = Vae().to(torch.float16)\nz = vae.encode(b.half())\n")
    text = patched(script, fp32_weights(at(script, "vae ="), None))
    assert text == "import torch\nvae = Vae()\nz = vae.encode(b)\n"
