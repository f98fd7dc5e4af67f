"""The acceptance kit: what halfguard promises, checked on the user's own device, as one record.

Most promises were only ever tested on CPUs and on a stand-in accelerator. Each module here checks one of
them on any device of torch. A check yields cases; ``kit`` runs all of them and makes the record.
"""

from halfguard.acceptance.kit import CHECKS, run_acceptance
from halfguard.acceptance.page import acceptance_page

__all__ = ["CHECKS", "acceptance_page", "run_acceptance"]
