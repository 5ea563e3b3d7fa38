"""Tills without shops: simulated trading days and the replay of recorded ones."""

from services.pos_simulator.broken import Breakage, Fault
from services.pos_simulator.simulation import Kind, Message, Options, Simulation

__all__ = ["Breakage", "Fault", "Kind", "Message", "Options", "Simulation"]
