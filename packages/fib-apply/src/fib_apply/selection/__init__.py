"""Selection: which solution serves which calls, by rules on traces, in cached tables. Imports no torch."""
