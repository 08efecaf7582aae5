"""Trajectories in the formats of other agents, read and written."""
