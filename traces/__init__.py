"""The traces room."""
