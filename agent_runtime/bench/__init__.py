"""Measures what guessing saves: the same tasks with and without it, interleaved in one process."""

from .records import RunRecord
from .report import BenchReport, report
from .speculate import bench_speculate, median_generation_ms

__all__ = ["BenchReport", "RunRecord", "bench_speculate", "median_generation_ms", "report"]
