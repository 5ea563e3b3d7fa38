"""API keys: their text and scopes, their topic, and the client that sends them."""
