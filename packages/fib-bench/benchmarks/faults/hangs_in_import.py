import signal
import time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(1e6)


def run(x):
    return x * 2
