"""The mismatch of rollout and trainer inside TRL's GRPO: ``class Trainer(MismatchMixin, GRPOTrainer)``.

TRL logs the mean and the largest difference. The mean can be near 0 although many tokens are outside the
clip range. So the share of these tokens, k3, chi2 and the effective sample size are logged as well. With
``rollouts_dir``, the tokens are also saved, for ``halfguard mismatch``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from halfguard.numerics.agreement import agreement
from halfguard.records.atomic_write import write_atomically

_NUMBERS = ("mean", "size", "k3", "chi2", "sample", "outside")


class MismatchMixin:
    """Logs ``mismatch/...`` for each batch of completions. List it before GRPOTrainer in the bases.

    TRL must have the log-probabilities of the sampler, as with ``use_vllm=True``; otherwise nothing is
    logged. Ratios from 1 - ``clip`` to 1 + ``clip`` are inside the clip range. One JSONL file per batch is
    written to ``rollouts_dir``.
    """

    _metrics: Any  # these four are the trainer's
    model: Any
    state: Any
    accelerator: Any

    def __init__(
        self,
        *args: Any,
        clip: float = 0.1,
        rollouts_dir: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> None:
        self._clip = clip
        self._rollouts_dir = None if rollouts_dir is None else Path(rollouts_dir)
        super().__init__(*args, **kwargs)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        sampled, scored = (output.get(f"{name}_per_token_logps") for name in ("sampling", "old"))
        if sampled is not None and scored is not None:
            mask = output["completion_mask"].bool()
            if (tools := output.get("tool_mask")) is not None:
                mask &= tools.bool()
            self._log(sampled[mask].double().cpu(), scored[mask].double().cpu())
            if self._rollouts_dir is not None and "tool_mask" not in output:
                self._keep(output, sampled, scored)
        return output

    def _log(self, sampled: Tensor, scored: Tensor) -> None:
        mode = "train" if self.model.training else "eval"
        if len(sampled):
            found = agreement("", sampled, scored, self._clip)
            for name in _NUMBERS:
                self._metrics[mode][f"mismatch/{name}"].append(getattr(found, name))

    def _keep(self, output: Any, sampled: Tensor, scored: Tensor) -> None:
        assert self._rollouts_dir is not None  # noqa: S101 - see the caller
        self._rollouts_dir.mkdir(parents=True, exist_ok=True)
        name = f"step-{self.state.global_step:06d}-rank-{self.accelerator.process_index}.jsonl"
        rows = (json.dumps(row) for row in _rows(output, sampled, scored))
        write_atomically(self._rollouts_dir / name, "\n".join(rows) + "\n")


def _rows(output: Any, sampled: Tensor, scored: Tensor) -> Iterator[dict[str, list[Any]]]:
    """Yield the tokens of each completion, without padding."""
    masks = output["prompt_mask"].bool(), output["completion_mask"].bool()
    for at in range(len(sampled)):
        prompt, completion = masks[0][at], masks[1][at]
        yield {
            "prompt_ids": output["prompt_ids"][at][prompt].tolist(),
            "completion_ids": output["completion_ids"][at][completion].tolist(),
            "rollout_logprobs": sampled[at][completion].tolist(),
            "trainer_logprobs": scored[at][completion].tolist(),
        }
