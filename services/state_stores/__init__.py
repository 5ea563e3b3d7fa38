"""The stores of an API instance: a thread applies changelogs to them. ``materialiser`` is the entry."""
