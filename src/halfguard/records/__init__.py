"""Plain frozen data that the tools exchange, read and written as versioned JSON."""

from halfguard.records.atomic_write import write_atomically
from halfguard.records.autopsy import Culprit
from halfguard.records.base import Record
from halfguard.records.finding import Finding
from halfguard.records.incident import IncidentRecord, MicroBatchRecord
from halfguard.records.journal_rows import JournalRow, parse_journal_row
from halfguard.records.snapshot import RankSnapshotRecord, SnapshotRecord
from halfguard.records.step import (
    Action,
    Cause,
    HealingRow,
    HealthRow,
    HealthWarning,
    HealthyStepsRow,
    NoteRow,
    RunInfo,
    StepRow,
    Summary,
)
from halfguard.records.watch import WatchRow

__all__ = [
    "Action",
    "Cause",
    "Culprit",
    "Finding",
    "HealingRow",
    "HealthRow",
    "HealthWarning",
    "HealthyStepsRow",
    "IncidentRecord",
    "JournalRow",
    "MicroBatchRecord",
    "NoteRow",
    "RankSnapshotRecord",
    "Record",
    "RunInfo",
    "SnapshotRecord",
    "StepRow",
    "Summary",
    "WatchRow",
    "parse_journal_row",
    "write_atomically",
]
