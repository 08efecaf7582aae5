"""The counter predictor: guesses the next call from counts over recorded and past turns, without a model.

    chance of a call = P(the turn calls a tool) * P(this tool | it calls one) * P(these arguments | this tool)

See `counter_tools`, `counter_arguments` and `counter_records` for the factors, and `counter_conversation` for what a
conversation shows. Of a turn that makes several calls the later ones are guessed in the same way, from what followed
such calls within a turn. All of it is learned in one pass and goes on learning online.
"""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_runtime.tools.values import ToolCall
from agent_runtime.traces.messages import AssistantMessage, Message
from agent_runtime.traces.trajectory import Trajectory

from .counter_arguments import Arguments
from .counter_calibration import Calibrator, Reliability, ReliabilityTable
from .counter_conversation import IN_AGENT, IN_USER, Aliases, Conversation
from .counter_json import Key, key_of
from .counter_records import Records
from .counter_tools import END, NOTHING, Outlook, Readiness, Tools
from .errors import CounterInvalid
from .predictors import Guess

FORMAT = 2
"""Of saved files."""
MOST_CONVERSATIONS = 256
"""Conversations whose state is kept; the one asked about longest ago goes first."""
COVERED, MOST_TOOLS = 0.99, 8
"""Arguments are looked for of the likeliest tools: as many as hold this share of the chances, at most so many."""
UNKNOWN = 1e-3
"""Chance of an argument for which there is no candidate."""
RARE = 0.03
"""Share of the turns below which a further call isn't looked for."""
NAME_CREDIT = 0.05
"""What the right tool with wrong arguments is worth beside the right call: it still drafts the call's first tokens."""


@dataclass(frozen=True, slots=True)
class _Filled:
    """A tool with its likeliest arguments."""

    arguments: dict[str, Key]
    chance: float
    """That all of them are right, if the tool is called."""
    ready: Readiness


@dataclass(frozen=True, slots=True)
class _Estimate:
    """What is known at a turn's start."""

    outlook: Outlook
    any_call: float
    """Chance that it makes a call."""
    filled: Mapping[str, _Filled]
    tool: str
    """Of the best call."""
    of_turns: float
    """Raw chance that the turn makes it."""

    def call(self) -> ToolCall:
        """Return the best call."""
        arguments = self.filled[self.tool].arguments
        return ToolCall(self.tool, {name: json.loads(key) for name, key in arguments.items()})


class CounterPredictor:
    """Guesses the next call from counts: which tool follows which steps, and where its arguments come from.

    Args:
        threshold: Below this confidence it abstains (`Guess.call` is None). At the default a guess that is started is
            more likely right than wrong. Abstaining never raises Hit@1: measure that with 0, which always names a call.
        online: Learn from a turn that was asked about as soon as its conversation goes on, without `observe`.

    Raises:
        CounterInvalid: the threshold is no probability.
    """

    source = "counter"

    def __init__(self, *, threshold: float = 0.5, online: bool = False) -> None:
        if not 0.0 <= threshold <= 1.0:
            raise CounterInvalid(f"CounterPredictor(threshold={threshold}): give a number from 0 to 1")
        self.threshold = threshold
        self.online = online
        self._tools = Tools()
        self._later = Tools()
        """Which tool follows a call within the same turn."""
        self._arguments = Arguments()
        self._records = Records()
        self._forms: defaultdict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
        """Per tool the sets of arguments it was called with."""
        self._aliases: Aliases = {}
        self._calibrator = Calibrator()
        self._calibrator_of_later = Calibrator()
        self._table = ReliabilityTable()
        self._conversations: OrderedDict[int, Conversation] = OrderedDict()
        self._opened = 0
        self._standing: tuple[Conversation, int, _Estimate] | None = None
        """The last estimate, for whom and after which message: what is learned next is mostly this turn."""

    # --- guessing ---------------------------------------------------------------------------------------------

    async def predict(self, messages: Sequence[Message], *, position: int) -> Guess:
        """Guess the first call of the turn that `messages` lead to; thinking so far changes nothing."""
        return self.guess(messages)

    def guess(self, messages: Sequence[Message], after: Sequence[ToolCall] = ()) -> Guess:
        """Guess the next call of the turn that `messages` lead to and that has made the calls `after` so far.

        `confidence` is the chance that the turn goes on with exactly this call, turns without a further call counted as
        misses; where `call` is None, the chance that it makes none. A conversation that was asked about before costs
        only what is new in it.
        """
        conversation = self._conversation(messages)
        if after:
            with conversation.calling(after):
                later = self._estimate_later(conversation)
            if isinstance(later, Outlook):
                return Guess(call=None, confidence=later.shares.get(END, 0.0))
            return self._guess(later, self._calibrator_of_later)
        estimate = self._estimate(conversation)
        return Guess(call=None, confidence=0.0) if estimate is None else self._guess(estimate, self._calibrator)

    def _guess(self, estimate: _Estimate, calibrator: Calibrator) -> Guess:
        confidence = calibrator.probability(estimate.of_turns)
        if confidence < self.threshold:
            return Guess(call=None, confidence=1.0 - estimate.any_call)
        return Guess(call=estimate.call(), confidence=confidence)

    def chance_of_call(self, messages: Sequence[Message]) -> float:
        """Return how likely the turn that `messages` lead to calls any tool; 0 as long as no tool is known.

        A guess's confidence divided by this is its chance where it is known that the turn makes a call.
        """
        estimate = self._estimate(self._conversation(messages))
        return 0.0 if estimate is None else estimate.any_call

    # --- learning ---------------------------------------------------------------------------------------------

    def learn(self, trajectory: Trajectory) -> None:
        """Learn from a recorded run, in one pass. Its `group` tells what is particular to one task."""
        conversation = Conversation(
            aliases=self._aliases, group=f"{trajectory.format} {trajectory.group or trajectory.id}"
        )
        for turn in trajectory.turns:
            conversation.extend(turn.before)
            self._learn_turn(conversation, turn.message)
            conversation.extend([turn.message, *turn.tool_messages()])

    def observe(self, messages: Sequence[Message], message: AssistantMessage) -> None:
        """Learn from a turn: `messages` led to `message`. Not needed with `online`."""
        conversation = self._conversation(messages)
        self._learn_turn(conversation, message)
        if self.online:
            conversation.extend([message])

    def reliability(self) -> Reliability:
        """Return how far its confidences could be believed: each guess was made before its turn was learned from."""
        return self._table.reliability()

    # --- keeping ----------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return all that was learned as plain JSON."""
        return {
            "format": FORMAT,
            "tools": self._tools.to_json(),
            "later": self._later.to_json(),
            "arguments": self._arguments.to_json(),
            "records": self._records.to_json(),
            "forms": [[tool, form, count] for tool, forms in self._forms.items() for form, count in forms.items()],
            "aliases": self._aliases,
            "calibrator": self._calibrator.to_json(),
            "calibrator_of_later": self._calibrator_of_later.to_json(),
            "reliability": self._table.to_json(),
        }

    def save(self, path: Path) -> None:
        """Write all that was learned to a JSON file. It holds words and values of what it learned from."""
        path.write_text(json.dumps(self.to_json(), ensure_ascii=False, separators=(",", ":")), encoding="utf-8")

    @classmethod
    def load(cls, path: Path, *, threshold: float = 0.5, online: bool = False) -> CounterPredictor:
        """Return a predictor that knows what `save` wrote.

        Raises:
            CounterInvalid: the file holds something else.
        """
        predictor = cls(threshold=threshold, online=online)
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["format"] != FORMAT:
                raise CounterInvalid(f"{path} was saved by another version: learn from the recordings again")
            predictor._load(data)
        except CounterInvalid:
            raise
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise CounterInvalid(
                f"{path} is no saved counter predictor ({error!r}): give a file that `save` wrote"
            ) from None
        return predictor

    def _load(self, data: Any) -> None:
        self._tools.load(data["tools"])
        self._later.load(data["later"])
        self._arguments.load(data["arguments"])
        self._records.load(data["records"])
        for tool, form, count in data["forms"]:
            self._forms[tool][tuple(form)] = count
        self._aliases.update({name: Counter(codes) for name, codes in data["aliases"].items()})
        self._calibrator.load(data["calibrator"])
        self._calibrator_of_later.load(data["calibrator_of_later"])
        self._table.load(data["reliability"])

    # --- inside -----------------------------------------------------------------------------------------------

    def _conversation(self, messages: Sequence[Message]) -> Conversation:
        for number, known in reversed(self._conversations.items()):
            if known.starts(messages):
                self._conversations.move_to_end(number)
                for message in messages[len(known.messages) :]:
                    if self.online and isinstance(message, AssistantMessage):
                        self._learn_turn(known, message)
                    known.extend([message])
                return known
        opened = Conversation(aliases=self._aliases, group=f"conversation {self._opened}")
        opened.extend(messages)
        self._conversations[self._opened] = opened
        self._opened += 1
        if len(self._conversations) > MOST_CONVERSATIONS:
            self._conversations.popitem(last=False)
        return opened

    def _estimate(self, conversation: Conversation) -> _Estimate | None:
        """Return what a turn's start tells; None as long as no tool is known."""
        if self._standing is not None:
            known, newest, standing = self._standing
            if known is conversation and newest == conversation.newest:
                return standing
        outlook = self._tools.outlook(conversation)
        if not outlook.shares:
            return None
        estimate = self._weigh(conversation, self._tools, outlook)
        self._standing = (conversation, conversation.newest, estimate)
        return estimate

    def _estimate_later(self, conversation: Conversation) -> _Estimate | Outlook:
        """Return what is known in the middle of a turn; only the outlook where no further call is likely at all."""
        outlook = self._later.outlook(conversation)
        if outlook.shares.get(END, 1.0) > 1.0 - RARE:
            return outlook
        return self._weigh(conversation, self._later, outlook)

    def _weigh(self, conversation: Conversation, tools: Tools, outlook: Outlook) -> _Estimate:
        """Look for the arguments of the likeliest tools, and return the best call."""
        likely = [tool for tool in outlook.likely(covered=COVERED, most=MOST_TOOLS) if tool != END]
        likely = likely or [max(outlook.shares.keys() - {END}, key=lambda tool: (outlook.shares[tool], tool))]
        filled = {tool: self._fill(conversation, tool) for tool in likely}
        chances = tools.probabilities(outlook, _readiness_of(outlook, filled))
        tool = max(likely, key=lambda name: chances[name] * (filled[name].chance + NAME_CREDIT))
        any_call = 1.0 - chances[END] if END in chances else outlook.any_call
        of_turns = (1.0 if END in chances else outlook.any_call) * chances[tool] * filled[tool].chance
        return _Estimate(outlook, any_call, filled, tool, of_turns)

    def _fill(self, conversation: Conversation, tool: str) -> _Filled:
        forms = self._forms[tool]
        form, count = forms.most_common(1)[0]
        arguments: dict[str, Key] = {}
        chances: dict[str, float] = {}
        for name in form:
            choice = self._arguments.choose(conversation, tool, name, set(arguments.values()))
            chances[name] = choice.probability if choice is not None else UNKNOWN
            if choice is not None:
                arguments[name] = choice.key
        chance = math.prod(chances.values())
        record = self._records.choose(conversation, tool) if len(form) > 1 else None
        if record is not None and all(name in chances for name, _ in record.arguments):
            together = dict(record.arguments)
            apart = math.prod(value for name, value in chances.items() if name not in together)
            if record.probability * apart > chance:
                chance = record.probability * apart
                arguments |= together
        ready = _readiness(conversation, tool, form, arguments, chance)
        return _Filled(arguments, chance * count / forms.total(), ready)

    def _learn_turn(self, conversation: Conversation, message: AssistantMessage) -> None:
        calls: list[ToolCall] = []
        for call in message.calls:
            if not isinstance(call, ToolCall):
                break
            calls.append(call)
        if message.calls and not calls:
            return  # malformed: it demanded no tool
        estimate = self._estimate(conversation)
        self._standing = None  # what is learned changes it
        first = calls[0] if calls else None
        name = first.name if first is not None else None
        if estimate is None:
            self._tools.learn(conversation, self._tools.outlook(conversation), {}, name)
        else:
            self._table.add(self._calibrator.probability(estimate.of_turns), _is_hit(first, estimate))
            self._calibrator.add(estimate.of_turns, _is_hit(first, estimate))
            self._tools.learn(conversation, estimate.outlook, self._ready(conversation, estimate, name), name)
        if first is not None:
            self._learn_arguments(conversation, first)
        for index in range(1, len(calls)):
            self._learn_later(conversation, calls[:index], calls[index])
        if calls and len(calls) == len(message.calls):
            self._learn_later(conversation, calls, None)

    def _learn_later(self, conversation: Conversation, made: Sequence[ToolCall], call: ToolCall | None) -> None:
        """Learn that a turn which had made some calls made another one, or (None) no more."""
        name = END if call is None else call.name
        with conversation.calling(made):
            estimate = self._estimate_later(conversation)
            if isinstance(estimate, Outlook):
                ready = {END: NOTHING}
                if name != END and name in estimate.shares:
                    ready[name] = self._fill(conversation, name).ready
                self._later.learn(conversation, estimate, ready if END in estimate.shares else {}, name)
            else:
                self._calibrator_of_later.add(estimate.of_turns, _is_hit(call, estimate))
                self._later.learn(conversation, estimate.outlook, self._ready(conversation, estimate, name), name)
            if call is not None:
                self._learn_arguments(conversation, call)

    def _ready(self, conversation: Conversation, estimate: _Estimate, name: str | None) -> dict[str, Readiness]:
        """Return how ready the tools were that were looked at, and the one that was called if it was known."""
        ready = _readiness_of(estimate.outlook, estimate.filled)
        if name is not None and name in estimate.outlook.shares and name not in ready:
            ready[name] = self._fill(conversation, name).ready
        return ready

    def _learn_arguments(self, conversation: Conversation, call: ToolCall) -> None:
        form = tuple(sorted(call.arguments))
        self._forms[call.name][form] += 1
        taken: set[Key] = set()
        for name in form:
            key = key_of(call.arguments[name])
            self._arguments.learn(conversation, call.name, name, key, taken)
            taken.add(key)
        self._records.learn(conversation, call.name, call.arguments)


def _readiness_of(outlook: Outlook, filled: Mapping[str, _Filled]) -> dict[str, Readiness]:
    ready = {tool: filling.ready for tool, filling in filled.items()}
    return ready | {END: NOTHING} if END in outlook.shares else ready


def _is_hit(call: ToolCall | None, estimate: _Estimate) -> bool:
    return call is not None and _is_same(call, estimate.call())


def _is_same(call: ToolCall, other: ToolCall) -> bool:
    return call.name == other.name and key_of(call.arguments) == key_of(other.arguments)


def _readiness(
    conversation: Conversation, tool: str, form: tuple[str, ...], arguments: Mapping[str, Key], chance: float
) -> Readiness:
    mention = 0
    for key in arguments.values():
        mention |= conversation.mention(key)
    return Readiness(
        sure=min(4, int(5 * chance)),
        repeats=bool(form)
        and all(arguments.get(name) in conversation.used.get(("call", tool, name), ()) for name in form),
        mention=mention & (IN_USER | IN_AGENT),
        fresh=any(conversation.last_seen.get(key) == conversation.newest for key in arguments.values()),
        again=bool(conversation.steps) and conversation.steps[-1] == tool,
        first=("call", tool) not in conversation.records,
    )
