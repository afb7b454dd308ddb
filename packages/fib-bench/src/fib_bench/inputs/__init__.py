"""Inputs of workloads.

`generation` reads blobs, looks up in `synthesis` what makes other inputs, and lengthens index inputs. For timed calls
`recipes` say what `generator.h` makes of a key, and `redrawing` draws structural integers.
"""
