"""Replay of recorded trajectories: how often the next call would have been guessed, and what that would have saved."""
