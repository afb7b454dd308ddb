"""Capture of calls: binding to a definition, the policy's decision, and copies of the tensors."""
