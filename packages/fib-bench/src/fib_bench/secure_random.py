"""Secure random source: every choice that a solution must not predict comes from it."""

from __future__ import annotations

import random

SECRET = random.SystemRandom()
