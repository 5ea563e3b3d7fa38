"""The rules, and everything that needs neither Spark nor FastAPI. ``pyproject.toml`` has the layers."""
