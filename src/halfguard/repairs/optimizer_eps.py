"""Give an optimizer another eps, in its own call or in the arguments of a Trainer."""

from __future__ import annotations

from halfguard.repairs.keywords import set_keyword
from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import SourceFile, called_name, calls_at

_CONFIGS = ("SFTConfig", "DPOConfig", "RewardConfig")  # of TRL


@Repair
def optimizer_eps(file: SourceFile, line: int, optimizer: str, eps: str) -> None:
    """Give the optimizer of a class that is made on a line an eps."""
    direct = [call for call in calls_at(file, line) if called_name(call) == optimizer]
    if direct:
        if len(direct) == 1:
            set_keyword(file, direct[0], "eps", eps)
        return
    arguments = [
        call
        for call in file.calls
        if (name := called_name(call)).endswith("TrainingArguments") or name in _CONFIGS
    ]
    if len(arguments) == 1:
        set_keyword(file, arguments[0], "adam_epsilon", eps)
