"""Commands over HTTP: checks them, submits each one exactly once, and waits for its decision."""
