"""TrainCheck's reproductions of silent training errors: what runs on a CPU, and what lint and ``why`` say.

They are in github.com/OrderLab/TrainCheck-Evaluation-Workloads. None of them is about 16-bit numbers: they
show what halfguard's instruments are not made for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.casebook.others.asking import ask_why, lint_rules

FOLDER = Path("silent-issue-detection", "bug-reprod-scripts")
# All 18 errors: the script, and what keeps it from running on a CPU without a download; empty: nothing does.
SCRIPTS = {
    "baichuan2-86": ("", "faulty hardware"),
    "deepspeed-1801": ("", "DeepSpeed on several GPUs"),
    "deepspeed-5794": ("bug.py", "DeepSpeed on several GPUs"),
    "lightning-thunder-725": ("LT725.py", "CUDA"),
    "mmpretrain-702": ("vgg19-finetune-cifar10.py", "torch 1.8"),
    "pytorch-51800": ("mnist_51800_buggy.py", "a download of MNIST"),
    "pytorch-84803": ("", "faulty hardware"),
    "pytorch-96600": ("", "faulty hardware"),
    "pytorch-104336": ("bug.py", "several GPUs"),
    "pytorch-115607": ("simple_buggy.py", "torch 2.2: a later one has not the option that it sets"),
    "pytorch-forum-84911": ("bug.py", "a download of CIFAR100 and weights"),
    "stackoverflow-60335387": ("bug.py", "CUDA, and a download of MNIST"),
    "stackoverflow-67180955": ("bug.py", ""),
    "transformers-17877": ("bug.py", ""),
    "transformers-23723": ("bug.py", "a download of weights"),
    "transformers-33844": ("bug.py", "CUDA, and a download of weights"),
    "transformers-34204": ("bug.py", "a download of a processor"),
    "x-jxmnop-ddp-out-of-sync": ("bug.py", "several GPUs, and a download of weights"),
}


@dataclass(frozen=True)
class Scored:
    """One error: what lint reports in its script, and what ``why`` answers if it runs here."""

    name: str
    lint: str
    why: str

    def __str__(self) -> str:
        return f"{self.name}: lint {self.lint}; why {self.why}"


def score(checkout: Path) -> Iterator[Scored]:
    """Lint every script of a checkout, and run those that can run."""
    for name, (file, needs) in SCRIPTS.items():
        script = checkout / FOLDER / name / file
        if not file:
            yield Scored(name, "has no script", f"not run: needs {needs}")
            continue
        lint = ", ".join(lint_rules(file, script.read_bytes())) or "nothing"
        if needs:
            yield Scored(name, lint, f"not run: needs {needs}")
            continue
        answer = ask_why(script, [])
        yield Scored(name, lint, f"{answer.outcome}, {answer.backward} backward passes")


def main(checkout: Path) -> int:
    """Print the score of each error, and the shares."""
    scored = []
    for one in score(checkout):
        scored.append(one)
        print(one, flush=True)
    runs = sum(not needs for _, needs in SCRIPTS.values())
    linted = sum(one.lint.startswith("HG") for one in scored)
    named = sum(one.why.startswith("non-finite value") for one in scored)
    print(f"{runs} of {len(scored)} run here; lint reports something in {linted}, why in {named}")
    return 0
