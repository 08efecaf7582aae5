"""An async agent runtime that hides tool latency."""
