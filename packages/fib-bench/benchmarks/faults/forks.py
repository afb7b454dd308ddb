import os
import time


def run(x):
    if os.fork() == 0:
        time.sleep(1e6)
    return x * 2
