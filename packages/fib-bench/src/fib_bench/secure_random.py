"""The source of all that a solution must not foresee."""

from __future__ import annotations

import random

SECRET = random.SystemRandom()
