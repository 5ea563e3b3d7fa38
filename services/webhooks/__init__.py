"""The process that delivers notifications to the endpoints of a file."""
