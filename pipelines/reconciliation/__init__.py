"""``loyalty audit``, ``loyalty rebuild`` and ``loyalty returns``."""
