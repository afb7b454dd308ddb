"""Replicas: processes such as tensor-parallel ranks, which must serve a call by the same kernel.

All change what they route at one point only, `ApplyRuntime.synchronize`, and to the same: they exchange their states
(`exchange`), and each derives the same agreement from these (`agreement`). `synchronizer` uses both.
"""
