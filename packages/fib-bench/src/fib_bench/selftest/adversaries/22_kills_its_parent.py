"""Kills the process that started it."""

import os
import signal
import time


def run(x, weight):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(1e6)
