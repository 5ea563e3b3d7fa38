"""The rules: valid invoices, points and accounts. Pure functions without I/O, clock and randomness."""
