# divide_by_nonzero()
import numpy as np


def usage(people, desks):
    with np.errstate(all="ignore"):
        return people / np.where(desks == 0, 1, desks)  # here
