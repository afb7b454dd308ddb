"""Execution of plans: scheduler, device lock, judge processes, local and Ray backends."""
