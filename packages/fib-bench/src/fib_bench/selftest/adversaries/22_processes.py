"""Starts processes that start processes; bounded, for a machine without limits."""

import os
import time


def run(x, weight):
    for _ in range(6):
        os.fork()
    time.sleep(1e6)
