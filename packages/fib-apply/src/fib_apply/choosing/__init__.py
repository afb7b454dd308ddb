"""Which solution serves which calls: rules on traces, and tables of what they choose, kept in the cache. No torch."""
