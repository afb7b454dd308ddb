import ctypes


def run(x):
    del x
    ctypes.string_at(0)
