"""Comparison of outputs: element rules, tolerances, sensitivity, precision."""
