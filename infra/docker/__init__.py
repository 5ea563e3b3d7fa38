"""The images: Dockerfiles, their scripts, and the health check of containers."""
