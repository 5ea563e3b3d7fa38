"""The web console: pages that show responses of the API."""
