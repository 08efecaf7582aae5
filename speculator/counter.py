"""The counter predictor: guesses the next call from counts over recorded and past turns, without a model."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent_runtime.tools.values import ToolCall
from agent_runtime.traces.messages import AssistantMessage, Message
from agent_runtime.traces.trajectory import Trajectory

from .counter_arguments import ArgumentSources
from .counter_calibration import Calibrator, Reliability, ReliabilityTable
from .counter_conversation import Conversation
from .counter_tools import NO_CALL, Context, ToolCounts
from .counter_values import key_of
from .predictors import Guess

MOST_CONVERSATIONS = 256
"""Conversations whose state is kept; the one asked about longest ago goes first."""
MOST_TOOLS = 4
"""Tools whose arguments are looked for in one guess."""


@dataclass(frozen=True, slots=True)
class _Scored:
    tool: str
    arguments: dict[str, Any]
    of_calls: float
    """Raw chance that a turn with a call makes this one."""
    of_turns: float
    """Raw chance that the turn makes this call."""


class CounterPredictor:
    """Guesses the next call from counts: which tool follows which steps, and where its arguments come from.

    Learns in one pass over recorded trajectories (`learn`) and from each turn as it happens (`observe`).

    Args:
        threshold: Below this confidence it abstains (`Guess.call` is None). 0 always names a call once it knows one.
            A miss costs a wasted execution, so the default asks for an even chance; abstaining never raises Hit@1.
    """

    source = "counter"

    def __init__(self, *, threshold: float = 0.5) -> None:
        if not 0.0 <= threshold <= 1.0:
            raise ValueError(f"CounterPredictor(threshold={threshold}): give a number from 0 to 1")
        self.threshold = threshold
        self._tools = ToolCounts()
        self._arguments: defaultdict[str, dict[str, ArgumentSources]] = defaultdict(dict)
        self._optional: defaultdict[str, dict[tuple[str, ...], int]] = defaultdict(dict)
        self._calibrator = Calibrator()
        self._table = ReliabilityTable()
        self._conversations: OrderedDict[int, Conversation] = OrderedDict()
        self._numbers = 0

    async def predict(self, messages: Sequence[Message], *, position: int) -> Guess:
        """Guess the first call of the turn that `messages` lead to; the position changes nothing."""
        return self.guess(messages)

    def guess(self, messages: Sequence[Message]) -> Guess:
        """Guess the first call of the turn that `messages` lead to.

        `confidence` is the chance that the turn makes exactly this call. Messages that continue a conversation asked
        about before cost only what is new in them.
        """
        return self._answer(self._best(self._conversation(messages)))

    def observe(self, messages: Sequence[Message], message: AssistantMessage) -> None:
        """Learn from a turn: `messages` led to `message`."""
        self._learn_turn(self._conversation(messages), message)

    def learn(self, trajectory: Trajectory) -> None:
        """Learn from a recorded run, in one pass."""
        conversation = Conversation()
        for turn in trajectory.turns:
            conversation.extend(turn.before)
            self._learn_turn(conversation, turn.message)
            conversation.extend([turn.message, *turn.tool_messages()])

    def reliability(self) -> Reliability:
        """Return how far its confidences could be believed: each guess was made before its turn was learned from."""
        return self._table.reliability()

    def _conversation(self, messages: Sequence[Message]) -> Conversation:
        for number, known in reversed(self._conversations.items()):
            if known.matches(messages):
                self._conversations.move_to_end(number)
                known.extend(messages[len(known.messages) :])
                return known
        conversation = Conversation()
        conversation.extend(messages)
        self._conversations[self._numbers] = conversation
        self._numbers += 1
        if len(self._conversations) > MOST_CONVERSATIONS:
            self._conversations.popitem(last=False)
        return conversation

    def _contexts(self, conversation: Conversation) -> list[Context]:
        steps = conversation.steps
        last = steps[-1] if steps else "start"
        before = steps[-2] if len(steps) > 1 else "start"
        return [(before, last, conversation.result), (before, last), (last,), ()]

    def _best(self, conversation: Conversation) -> _Scored | None:
        shares = self._tools.probabilities(self._contexts(conversation))
        any_call = 1.0 - shares.pop(NO_CALL, 0.0)
        if not shares:
            return None
        best: _Scored | None = None
        for tool in sorted(shares, key=lambda name: (-shares[name], name))[:MOST_TOOLS]:
            arguments, chance = self._fill(conversation, tool)
            of_turns = shares[tool] * chance
            if best is None or of_turns > best.of_turns:
                best = _Scored(tool, arguments, of_turns / any_call if any_call else 0.0, of_turns)
        return best

    def _fill(self, conversation: Conversation, tool: str) -> tuple[dict[str, Any], float]:
        forms = self._optional[tool]
        names = max(forms, key=lambda form: forms[form])
        chance = forms[names] / sum(forms.values())
        arguments = {}
        for name in names:
            ranked = self._arguments[tool][name].rank(conversation, ("call", tool, name))
            if ranked:
                arguments[name] = ranked[0].value
                chance *= ranked[0].probability
            else:
                chance *= 0.01
        return arguments, chance

    def _answer(self, best: _Scored | None) -> Guess:
        if best is None:
            return Guess(call=None, confidence=0.0)
        confidence = self._calibrator.probability(best.of_turns)
        if confidence < self.threshold:
            return Guess(call=None, confidence=confidence)
        return Guess(call=ToolCall(best.tool, best.arguments), confidence=confidence)

    def _learn_turn(self, conversation: Conversation, message: AssistantMessage) -> None:
        call = next(iter(message.calls), None)
        made = call if isinstance(call, ToolCall) else None
        best = self._best(conversation)
        if best is not None:
            hit = made is not None and made.name == best.tool and key_of(made.arguments) == key_of(best.arguments)
            self._table.add(self._calibrator.probability(best.of_turns), hit)
            self._calibrator.add(best.of_turns, hit)
        self._tools.add(self._contexts(conversation), made.name if made is not None else NO_CALL)
        if made is None:
            return
        forms = self._optional[made.name]
        form = tuple(sorted(made.arguments))
        forms[form] = forms.get(form, 0) + 1
        known = self._arguments[made.name]
        for name, value in made.arguments.items():
            if name not in known:
                known[name] = ArgumentSources()
            known[name].add(conversation, ("call", made.name, name), key_of(value))
