"""The dependencies of the project: its components, advisories and SBOMs."""
