"""The shop: its world, its tools, the oracle's trajectories, the judge and the HTTP backend."""
