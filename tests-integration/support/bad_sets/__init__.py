"""Bad data sets: kinds of damage to a small healthy set, the commands that read it, and the checks of their output."""
