"""Choose a precision for the device of this machine, as ``precision: auto`` asks for.

The choice is the one that ``halfguard doctor`` makes from the table, without its measurements. It is made
once, when a configuration is read, so that the journal and every rank see a definite name.
"""

from __future__ import annotations

import logging
from typing import Any

from halfguard.hardware.choice import choose
from halfguard.hardware.lookup import look_up_device, look_up_processor
from halfguard.hardware.reading import read_devices, read_processor
from halfguard.precision_names import PrecisionName

logger = logging.getLogger("halfguard")


def choose_precision(torch: Any) -> PrecisionName:
    """Choose for the first accelerator of torch, or for the processor if there is none; log why."""
    devices = read_devices(torch)
    hardware = look_up_device(devices[0]) if devices else look_up_processor(read_processor())
    choice = choose(hardware)
    logger.info(
        "precision: auto is %s on %s. %s", choice.precision, hardware.name, choice.reasons[0]
    )
    return choice.precision
