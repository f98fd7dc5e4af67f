"""``halfguard why``: run somebody's script as it is, and find where its first bad number came from."""

from halfguard.investigation.investigating import investigate
from halfguard.investigation.passes import Target

__all__ = ["Target", "investigate"]
