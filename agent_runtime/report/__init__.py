"""Reports of recorded runs: pages, charts and comparisons."""
