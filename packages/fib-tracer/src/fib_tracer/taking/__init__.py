"""What happens to a call: looked at, decided on, copied."""
