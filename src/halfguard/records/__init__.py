"""Plain frozen data that the instruments exchange: versioned JSON in and out."""

from halfguard.records.base import Record
from halfguard.records.culprit import Culprit, TensorRange
from halfguard.records.files import write_whole
from halfguard.records.finding import Finding, Severity
from halfguard.records.incident import IncidentRecord, MicroBatchRecord
from halfguard.records.rows import Row, row_from_json
from halfguard.records.snapshot import RankSnapshotRecord, SnapshotRecord
from halfguard.records.step import Action, Cause, RunInfo, StepRow, Summary, WindowRow

__all__ = [
    "Action",
    "Cause",
    "Culprit",
    "Finding",
    "IncidentRecord",
    "MicroBatchRecord",
    "RankSnapshotRecord",
    "Record",
    "Row",
    "RunInfo",
    "Severity",
    "SnapshotRecord",
    "StepRow",
    "Summary",
    "TensorRange",
    "WindowRow",
    "row_from_json",
    "write_whole",
]
