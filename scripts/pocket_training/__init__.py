"""How the demo's model is made: tokenizer, samples, training and judging. Entry point: ``train_pocket.py``."""
