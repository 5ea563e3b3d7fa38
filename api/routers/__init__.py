"""The routes. They call the other packages."""
