"""The file with points from another system that ``loyalty import`` reads."""
