"""What a fix leaves without a use is removed, and nothing else."""

from __future__ import annotations

import pytest

from tests.lint.helper import fix
from tests.support.cases import each

NEW = 'torch.amp.GradScaler("cuda")'


@each(
    ("before", "after"),
    [
        (
            "import torch\nfrom torch.cuda.amp import GradScaler\ns = GradScaler()\n",
            f"import torch\ns = {NEW}\n",
        ),
        (
            "import torch\nfrom torch.cuda.amp import GradScaler, custom_fwd\ns = GradScaler()\n",
            f"import torch\nfrom torch.cuda.amp import custom_fwd\ns = {NEW}\n",
        ),
        (
            "import torch\nimport torch.cuda.amp as amp\ns = amp.GradScaler()\n",
            f"import torch\ns = {NEW}\n",
        ),
        (
            "import torch\ndef f():\n    from torch.cuda.amp import GradScaler\n    return GradScaler()\n",
            f"import torch\ndef f():\n    return {NEW}\n",
        ),
        # Still used, exported, or with a comment that would be lost.
        (
            "import torch\nfrom torch.cuda.amp import GradScaler\ns = GradScaler()\nt = GradScaler\n",
            f"import torch\nfrom torch.cuda.amp import GradScaler\ns = {NEW}\nt = GradScaler\n",
        ),
        (
            (
                "import torch\nfrom torch.cuda.amp import GradScaler\n"
                '__all__ = ["GradScaler"]\ns = GradScaler()\n'
            ),
            (
                'import torch\nfrom torch.cuda.amp import GradScaler\n__all__ = ["GradScaler"]\n'
                f"s = {NEW}\n"
            ),
        ),
        (
            "import torch\nfrom torch.cuda.amp import GradScaler  # kept\ns = GradScaler()\n",
            f"import torch\nfrom torch.cuda.amp import GradScaler  # kept\ns = {NEW}\n",
        ),
    ],
)
def test_dead_imports(before: str, after: str) -> None:
    assert fix(before, "safe").data.decode() == after


@pytest.mark.parametrize(
    "text",
    [
        (
            "import torch\ntry:\n    from torch.amp import GradScaler\nexcept ImportError:\n"
            "    from torch.cuda.amp import GradScaler\ns = GradScaler()\n"
        ),
        "import torch\nif torch.__version__ < '2.4':\n    s = torch.cuda.amp.GradScaler()\n",
        "import torch\ns = torch.amp.GradScaler() if TORCH_2 else torch.cuda.amp.GradScaler()\n",
    ],
)
def test_fallbacks_for_old_versions_stay(text: str) -> None:
    assert fix(text, "safe").applied == 0


def test_finfo_only_for_floats() -> None:
    unknown = "import torch\ndef f(x, m):\n    return x.masked_fill(m, -1e9)\n"
    assert fix(unknown, "safe").applied == 0
    whole = "import torch\ndef f(x, m):\n    return x.long().masked_fill(m, -1e9)\n"
    assert fix(whole).applied == 0
