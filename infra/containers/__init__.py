"""The stack in containers: Compose projects of this machine's engine, driven by their own commands."""
