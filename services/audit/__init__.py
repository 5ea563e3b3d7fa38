"""Whether what is served, stored and recorded of an account is what its events make of it: one customer at a time."""
