"""The state of one account, and how events and timers change it. ``processor`` is the entry."""
