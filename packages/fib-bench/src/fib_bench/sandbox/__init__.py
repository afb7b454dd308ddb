"""Confinement of workers: policy, Landlock, seccomp, namespaces, limits."""
