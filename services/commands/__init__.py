"""How the API derives the id of a command, and publishes the command after its mark."""
