"""What a call goes through: generated code, guards, dispatchers; for eager code and for torch.compile."""
