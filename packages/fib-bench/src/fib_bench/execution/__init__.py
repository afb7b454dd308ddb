"""Execution of plans: scheduler, device workers, device lock, judge processes, local and Ray backends."""
