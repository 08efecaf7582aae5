"""The speculator room."""
