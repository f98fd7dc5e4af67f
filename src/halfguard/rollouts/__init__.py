"""Why trainer and rollout of reinforcement learning compute different log-probabilities."""

from halfguard.rollouts.measuring import mismatch
from halfguard.rollouts.reading import Rollout, read_rollouts

__all__ = ["Rollout", "mismatch", "read_rollouts"]
