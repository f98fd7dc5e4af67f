"""The description of a training job, and how an ENTRY string is loaded."""

from halfguard.workload.entry import load
from halfguard.workload.job import Workload
from halfguard.workload.losses import final_loss
from halfguard.workload.seeding import seeded

__all__ = ["Workload", "final_loss", "load", "seeded"]
