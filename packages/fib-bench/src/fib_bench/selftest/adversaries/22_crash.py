"""Reads where nothing is."""

import ctypes


def run(x, weight):
    ctypes.string_at(0)
