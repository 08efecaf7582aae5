"""Drafts: where the tokens come from that the target verifies several at a time."""
