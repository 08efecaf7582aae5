"""The built-in demo: a small online shop, its support agent and the agent's model."""
