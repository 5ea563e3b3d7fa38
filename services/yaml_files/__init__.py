"""Reads YAML files strictly, and names the line of each problem."""
