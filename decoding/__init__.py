"""The decoding room."""
