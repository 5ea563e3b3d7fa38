"""Describes the machine of a measurement."""

import os
import platform
from pathlib import Path

import psutil


def machine() -> dict[str, str | int]:
    """Processor, cores, memory and Python version, for the report of a benchmark."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count() or 1,
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def cpu_model() -> str:
    """The processor as Linux names it, or as Python names it on other systems."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())
