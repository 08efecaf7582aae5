"""Replay of recorded trajectories: how often the next call would have been guessed, and what that would have saved."""

from agent_runtime.traces.proportion import Proportion, wilson

from .counter import ForcedCounter
from .forced import Answer, AnsweredTurn, Forced, ForcedPredictor, ForcedTurn
from .replaying import Replay, replay
from .score import Score
from .self_probe import ForcedSelf
from .timing import Timing
from .whatif import Outcome, Setting, sweep

__all__ = [
    "Answer",
    "AnsweredTurn",
    "Forced",
    "ForcedCounter",
    "ForcedPredictor",
    "ForcedSelf",
    "ForcedTurn",
    "Outcome",
    "Proportion",
    "Replay",
    "Score",
    "Setting",
    "Timing",
    "replay",
    "sweep",
    "wilson",
]
