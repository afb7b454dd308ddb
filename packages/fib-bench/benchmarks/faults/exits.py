import os


def run(x):
    del x
    os._exit(0)
