"""Channel between the judge and its workers: messages, frames, shared memory."""
