"""Users of the service: accounts and roles, tokens, and the audit log."""
