"""Programs that measure the system. ``make bench-…`` runs them."""
