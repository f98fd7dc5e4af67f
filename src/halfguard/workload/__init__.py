"""The description of a training job, the ENTRY string that names one, and the plain step that trains it."""

from halfguard.workload.job import Workload, load
from halfguard.workload.training import TrainingStep, final_loss

__all__ = ["TrainingStep", "Workload", "final_loss", "load"]
