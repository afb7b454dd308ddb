"""Execution of plans: scheduler, device workers, judge processes, local and Ray backends."""
