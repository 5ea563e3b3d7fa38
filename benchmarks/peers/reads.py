"""x"""
def measure(directory, options):
    return []
