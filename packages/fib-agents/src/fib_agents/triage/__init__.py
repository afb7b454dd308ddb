"""Static triage: constructs of known exploits in sources, found before anything runs. Imports no torch.

The rules are data (`rules.toml`), `facts` and `module_facts` read the constructs of a source, and `matcher` compares
the two. A finding is advice for a reader and never a verdict: honest sources may use the constructs, and exploits may
hide them.
"""

from __future__ import annotations

from .matcher import NOTE, SUSPICIOUS, Finding, Rule, is_suspicious, load_rules, triage

__all__ = ["NOTE", "SUSPICIOUS", "Finding", "Rule", "is_suspicious", "load_rules", "triage"]
