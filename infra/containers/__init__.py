"""The stack in containers, for the demo and the tests."""
