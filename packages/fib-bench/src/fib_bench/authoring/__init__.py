"""Authoring of records: solutions from kernel files, and definitions from Python references. Imports no torch."""

from __future__ import annotations
