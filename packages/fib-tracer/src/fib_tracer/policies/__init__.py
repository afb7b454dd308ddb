"""Which calls are kept, and what of them is stored."""
