"""Which runs an argument means: paths, patterns, selections, and the tracker that is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from halfguard.comparison.groups import RunGroup, read_groups, split_argument
from halfguard.errors import UsageError
from tests.comparison.logs import write_csv, write_fp32_and_fp16
from tests.support.cases import each


def groups(*places: object, metric: str = "val_loss") -> list[RunGroup]:
    return read_groups([str(place) for place in places], metric)


def seeds(group: RunGroup) -> list[int | None]:
    return [run.seed for run in group.runs]


@each(
    ("argument", "expected"),
    [
        ("runs/fp16", ("runs/fp16", {})),
        ("wandb:group=a", ("wandb", {"group": "a"})),
        ("wandb:group=a, lr=0.1", ("wandb", {"group": "a", "lr": "0.1"})),
        ("sqlite:///mlflow.db", ("mlflow.db", {})),
        ("sqlite:////data/mlflow.db:experiment=a", ("/data/mlflow.db", {"experiment": "a"})),
        ("C:\\runs", ("C:\\runs", {})),
    ],
)
def test_an_argument_is_a_path_and_a_selection(
    argument: str, expected: tuple[str, dict[str, str]]
) -> None:
    assert split_argument(argument) == expected


def test_a_path_that_looks_like_a_selection_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "time=12:lr=0.1", [1.0])
    assert split_argument("time=12:lr=0.1") == ("time=12:lr=0.1", {})


def test_a_pattern_gathers_folders(tmp_path: Path) -> None:
    for precision in ("fp32", "fp16"):
        for seed in range(3):
            write_csv(tmp_path / f"{precision}-seed{seed}/version_0", [1.0])
    one, other = groups(tmp_path / "fp32-*", tmp_path / "fp16-*")
    assert (one.name, other.name) == ("fp32", "fp16")
    assert seeds(one) == seeds(other) == [0, 1, 2]
    assert {run.seed_source for run in one.runs} == {"name of the folder"}


def test_runs_in_one_folder_are_selected_by_a_setting(tmp_path: Path) -> None:
    for index in range(6):
        hparams = {"trainer": {"precision": "32" if index % 2 else "16-mixed"}, "seed": index // 2}
        write_csv(tmp_path / f"version_{index}", [1.0], hparams=hparams)
    one, other = groups(f"{tmp_path}:trainer.precision=32", f"{tmp_path}:trainer.precision=16-*")
    assert (one.name, other.name) == ("32", "16")
    assert seeds(one) == seeds(other) == [0, 1, 2]
    assert {Path(run.place).name for run in one.runs} == {"version_1", "version_3", "version_5"}


@pytest.mark.parametrize(
    ("selection", "message", "cure"),
    [
        ("precisoin=32", "Did you mean precision?", "Available settings: precision, seed."),
        ("precision=64", "no run has precision=64", "Available values: 32."),
        ("precision=32,seed=1", "no run has all of these settings", ""),
    ],
)
def test_a_selection_that_finds_nothing(
    tmp_path: Path, selection: str, message: str, cure: str
) -> None:
    write_csv(tmp_path / "a", [1.0], hparams={"precision": "32", "seed": 0})
    write_csv(tmp_path / "b", [1.0], hparams={"seed": 1})
    with pytest.raises(UsageError) as refused:
        groups(f"{tmp_path}:{selection}")
    assert message in refused.value.message
    assert refused.value.cure == cure


def test_an_unknown_metric_is_answered_with_those_that_exist(tmp_path: Path) -> None:
    fp32, _ = write_fp32_and_fp16(tmp_path, 0.0)
    with pytest.raises(
        UsageError, match=r"no run has a metric 'val/loss'\. Did you mean"
    ) as refused:
        groups(fp32, metric="val/loss")
    assert "val_loss?" in refused.value.message
    assert refused.value.cure == (
        "Available metrics (Lightning's CSVLogger): epoch, train_loss, val_loss."
    )


@pytest.mark.parametrize("name", ["gone", "gone-*", "gone:seed=1"])
def test_a_place_that_does_not_exist(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        groups(tmp_path / name)


def test_a_folder_without_logs_names_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    (tmp_path / "other.db").write_bytes(b"no database")
    with pytest.raises(UsageError, match="no runs of a tracker that halfguard can read") as refused:
        groups(tmp_path)
    assert "TensorBoard (*tfevents*)" in refused.value.cure


def test_of_two_trackers_the_one_with_more_runs_is_read(tmp_path: Path) -> None:
    for seed in range(3):
        write_csv(tmp_path / f"seed{seed}", [1.0])
    state = {"global_step": 10, "log_history": [{"step": 10, "val_loss": 7.0}]}
    (tmp_path / "seed0/trainer_state.json").write_text(json.dumps(state))
    (group,) = groups(tmp_path)
    assert group.tracker == "Lightning's CSVLogger"
    assert group.ignored == ("transformers' Trainer",)
    assert len(group.runs) == 3


def test_groups_that_end_alike_are_named_by_where_they_differ(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_csv(tmp_path / name / "fp16", [1.0], hparams={"lr": 0.1, "rate": 0.1})
    one, other = groups(tmp_path / "a/fp16", tmp_path / "b/fp16")
    assert (one.name, other.name) == ("a/fp16", "b/fp16")
    places = f"{tmp_path}:lr=0.1", f"{tmp_path}:rate=0.1"
    assert tuple(group.name for group in groups(*places)) == places


@each(
    ("hparams", "expected"),
    [
        ({"seed": 3}, 3),
        ({"seed": "3"}, 3),
        ({"trainer": {"Random_Seed": 4}}, 4),
        ({"data": {"seed": 9}, "seed": 3}, 3),  # the one that is nested least
        ({"seed_everything": True, "seed": 5}, 5),
        ({"seed": None}, 8),  # then the name of the folder
        ({"lr": 0.1}, 8),
    ],
)
def test_where_a_seed_is_found(tmp_path: Path, hparams: dict[str, object], expected: int) -> None:
    write_csv(tmp_path / "fp16_Seed=8/version_2", [1.0], hparams=hparams)
    (group,) = groups(tmp_path)
    assert seeds(group) == [expected]


def test_a_seed_above_the_given_path_does_not_count(tmp_path: Path) -> None:
    write_csv(tmp_path / "seed42/fp16/version_0", [1.0])
    assert seeds(groups(tmp_path / "seed42/fp16")[0]) == [None]
    assert seeds(groups(tmp_path / "seed42")[0]) == [42]


def test_objects_in_hparams_are_not_constructed(tmp_path: Path) -> None:
    write_csv(tmp_path / "run", [1.0])
    target = tmp_path / "created"
    (tmp_path / "run/hparams.yaml").write_text(
        f"seed: 4\nbad: !!python/object/apply:os.mkdir ['{target}']\nname: !custom {{a: 1}}\n"
    )
    (group,) = groups(tmp_path)
    assert seeds(group) == [4]
    assert not target.exists()
