"""The calls and guesses of one turn: what is proposed, demanded, committed or abandoned."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from .demanded import DemandedCall
from .errors import DispatcherError, InvalidArguments
from .guesses import Guess, Guesses, matches
from .tool import Tool
from .values import CallDemanded, Ending, MalformedCall, Outcome, Prediction, RefusalReason, ToolCall
from .wiring import Wiring

_LISTED_NAMES = 20


class TurnCalls:
    """One turn's view of the dispatcher; made by `Dispatcher.open_turn`.

    Nothing here waits except `commit`. A guess says which call of the turn it is of (`Prediction.index`) and can serve
    only that one; of each call one guess stands. None serves a call behind a barrier (a write or a `sequential` tool)
    of the same turn: what it read may be older than the barrier.
    """

    def __init__(self, wiring: Wiring, guesses: Guesses, turn: int) -> None:
        self.turn = turn
        self._wiring = wiring
        self._guesses = guesses
        self._standing: dict[int, Guess] = {}
        """By the index of the call that is guessed."""
        self._calls: list[DemandedCall] = []
        self._state: Literal["open", "committed", "abandoned"] = "open"

    @property
    def is_over(self) -> bool:
        """Whether the turn is committed or abandoned and each of its calls has its result."""
        return self._state != "open" and all(call.outcome is not None for call in self._calls)

    # --- guesses ----------------------------------------------------------------------------------------------

    def propose(self, prediction: Prediction) -> int:
        """Hand in a prediction; its tool starts now if the gate and the limits allow. Return the guess's number.

        Of those of one call the latest stands. One that equals the guess that stands is refused, a different one takes
        its place.
        """
        guess, problem = self._guesses.propose(self.turn, prediction)
        if not self._ended_early(guess):
            if problem is not None:
                self._put_aside(guess, problem)
            elif self._equals_standing(guess):
                self._guesses.refuse(guess, "same_as_standing")
            else:
                self._stand(guess)
                # Guesses of later calls leave a place for another guess of the first, until that is demanded.
                guess.refusal = self._guesses.start(guess, reserved=int(guess.index > 0 and not self._calls))
        return guess.number

    def refuse(self, prediction: Prediction, reason: RefusalReason) -> int:
        """Record a prediction that the policy doesn't want to start. Return the guess's number.

        It still counts as the prediction that stands, unless a guess already runs.
        """
        guess, _ = self._guesses.propose(self.turn, prediction)
        if not self._ended_early(guess):
            self._put_aside(guess, reason)
        return guess.number

    def late(self, prediction: Prediction) -> int:
        """Record a prediction that was finished after the demand. Return the guess's number."""
        guess, _ = self._guesses.propose(self.turn, prediction)
        self._guesses.end(guess, "late")
        return guess.number

    def is_started(self, prediction: Prediction) -> bool:
        """Tell whether a guess of exactly that call stands and its tool was started."""
        standing, tool = self._standing.get(prediction.index), self._wiring.tools.get(prediction.call.name)
        if standing is None or tool is None or not standing.started:
            return False
        try:
            return matches(standing, tool, tool.validate(prediction.call.arguments))
        except InvalidArguments:
            return False

    def withdraw(self, index: int) -> None:
        """Give up the guesses of call number `index` and of those behind it: what they followed from was wrong."""
        for number in [number for number in self._standing if number >= index]:
            self._end_unused(self._standing.pop(number), "cancelled", "withdrawn")

    def _ended_early(self, guess: Guess) -> bool:
        """End a proposal for which it is too late; tell whether it was."""
        if guess.index < len(self._calls):
            self._guesses.end(guess, "late")
        elif self._state != "open" or not self._wiring.is_open:
            self._guesses.refuse(guess, "closed")
        elif guess.index and self._meets_barrier(guess):
            self._guesses.refuse(guess, "barrier")
        return guess.ending is not None

    def _meets_barrier(self, guess: Guess) -> bool:
        """Tell whether the guess is of a barrier behind other calls, or of a call behind what is or may be one."""
        guessed = [guess, *(earlier for index, earlier in self._standing.items() if index < guess.index)]
        tools = [one.tool for one in guessed] + [call.tool for call in self._calls if call.valid is not None]
        return any(tool is not None and tool.contract.is_barrier for tool in tools)

    def _put_aside(self, guess: Guess, reason: RefusalReason) -> None:
        """Keep a prediction that isn't started: it may still turn out right, and the trace should tell."""
        standing = self._standing.get(guess.index)
        if standing is not None and standing.started:
            self._guesses.refuse(guess, reason)
        else:
            self._stand(guess)
            guess.refusal = reason

    def _stand(self, guess: Guess) -> None:
        standing = self._standing.get(guess.index)
        if standing is not None:
            self._end_unused(standing, "cancelled", "superseded")
        self._standing[guess.index] = guess

    def _equals_standing(self, guess: Guess) -> bool:
        standing = self._standing.get(guess.index)
        if standing is None or not standing.started or _was_stopped(standing):
            return False
        return guess.tool is not None and standing.is_of(guess.tool, guess.canonical)

    def _end_unused(self, guess: Guess, ending: Ending, reason: str, **facts: Any) -> None:
        """End a guess that serves nothing: as what it already is, or else as `ending`."""
        if guess.refusal is not None:
            self._guesses.end(guess, "refused", reason=guess.refusal, **facts)
        elif guess.state == "failed":
            outcome = guess.outcome
            self._guesses.end(guess, "failed", reason=outcome.error if outcome is not None else None, **facts)
        elif _was_stopped(guess):
            self._guesses.end(guess, "cancelled", reason=guess.cancel_reason or reason, **facts)
        else:
            self._guesses.end(guess, ending, reason=reason, **facts)

    # --- the agent's calls ------------------------------------------------------------------------------------

    def demand(self, call: ToolCall | MalformedCall) -> int:
        """Take a call whose block has closed in the agent's stream; return its index in the turn.

        A read starts at once, unless an earlier call of the turn is a barrier; a write waits for `commit`.

        Raises:
            DispatcherError: the turn is committed or abandoned, or the dispatcher is closed.
        """
        wiring = self._wiring
        if self._state != "open" or wiring.tasks is None:
            raise DispatcherError(f"turn {self.turn} is over: open a new one before demanding calls")
        index = len(self._calls)
        tool, valid, problem = self._check(call)
        wiring.demanded += 1
        wiring.emit(
            CallDemanded(
                turn=self.turn,
                at=wiring.now(),
                index=index,
                call=call if isinstance(call, ToolCall) else ToolCall("", {"malformed": call.text}),
                pre_executable=tool is not None and valid is not None and wiring.gate.decide(tool).allowed,
                barrier=tool is not None and valid is not None and tool.contract.is_barrier,
            )
        )
        demanded = DemandedCall(wiring, self._guesses, turn=self.turn, index=index, call=call, tool=tool, valid=valid)
        before = self._must_wait_for(demanded)
        self._calls.append(demanded)
        self._resolve_standing(demanded)
        if problem is not None:
            demanded.fail(*problem)
        if demanded.outcome is None:
            wiring.tasks.start_soon(demanded.serve, before, name=f"call {self.turn}.{index}")
        return index

    async def commit(self) -> list[Outcome]:
        """Declare the message complete: writes run now. Return the outcomes in the order of the calls.

        Hooks and approvals fire here and only here, in the order of the calls. Cancelling ends every call.

        Raises:
            DispatcherError: the turn is already committed or abandoned.
        """
        if self._state != "open":
            raise DispatcherError(f"turn {self.turn} is already {self._state}")
        self._state = "committed"
        self._end_standing("discarded", "no_call")
        try:
            for segment in self._segments():
                for call in segment:
                    await self._release(call)
                for call in segment:
                    await call.done.wait()
                    if self._wiring.after_call is not None and isinstance(call.call, ToolCall):
                        assert call.outcome is not None
                        await self._wiring.after_call(call.call, call.outcome)
        except BaseException:
            self._cancel_calls()
            raise
        return [call.outcome for call in self._calls if call.outcome is not None]

    def abandon(self) -> None:
        """Give the turn up, e.g. because its stream broke: cancels what runs, writes nothing. Twice is harmless."""
        if self._state == "open":
            self._state = "abandoned"
        self._cancel_calls()
        self._end_standing("cancelled", "abandoned" if self._wiring.is_open else "closed")

    def _end_standing(self, ending: Ending, reason: str) -> None:
        """End the guesses whose calls were not demanded."""
        standing, self._standing = self._standing, {}
        for guess in standing.values():
            self._end_unused(guess, ending, reason)

    def _cancel_calls(self) -> None:
        for call in self._calls:
            call.cancel()
            if call.joined is not None:
                self._guesses.end(
                    call.joined,
                    "cancelled",
                    reason="abandoned" if self._wiring.is_open else "closed",
                    matched=True,
                    matched_name=True,
                    demanded_at=call.demanded_at,
                )

    def _check(
        self, call: ToolCall | MalformedCall
    ) -> tuple[Tool | None, dict[str, Any] | None, tuple[Any, str, str] | None]:
        """Return the call's tool, its validated arguments, and what is wrong with it (status, kind, message)."""
        if isinstance(call, MalformedCall):
            return None, None, ("invalid_arguments", "malformed_call", call.reason)
        tool = self._wiring.tools.get(call.name)
        if tool is None:
            names = self._wiring.tools.names
            listed = ", ".join(names[:_LISTED_NAMES]) + (", ..." if len(names) > _LISTED_NAMES else "")
            return None, None, ("unknown_tool", "unknown_tool", f"no tool is called {call.name!r}; tools: {listed}")
        try:
            return tool, tool.validate(call.arguments), None
        except InvalidArguments as error:
            return tool, None, ("invalid_arguments", "invalid_arguments", str(error))

    def _resolve_standing(self, demanded: DemandedCall) -> None:
        """Match the guess of this call against it: adopt it, join it, or end it. Behind a barrier nothing is served."""
        guess = self._standing.pop(demanded.index, None)
        if _is_of_barrier(demanded):
            self._end_standing("cancelled", "barrier")
        if guess is None:
            return
        call = demanded.call
        matched = matches(guess, demanded.tool, demanded.valid)
        facts: dict[str, Any] = {
            "matched": matched,
            "matched_name": isinstance(call, ToolCall) and guess.prediction.call.name == call.name,
            "demanded_at": demanded.demanded_at,
        }
        usable = guess.started and guess.state != "failed" and not _was_stopped(guess)
        if not (matched and usable):
            self._end_unused(guess, "discarded", "miss", **facts)
            return
        stale = self._guesses.is_stale(guess)
        if stale is not None:
            self._guesses.end(guess, "stale", reason=stale, **facts)
        elif guess.state == "ready" and guess.outcome is not None:
            self._guesses.end(guess, "adopted", **facts)
            demanded.finish(guess.outcome, guess=guess.number)
        else:
            self._guesses.promote(guess)
            demanded.joined = guess

    def _must_wait_for(self, demanded: DemandedCall) -> list[DemandedCall]:
        """Return the earlier calls that must have ended before this one may run."""
        earlier = [call for call in self._calls if call.outcome is None]
        return earlier if demanded.is_barrier else [call for call in earlier if call.is_barrier]

    def _segments(self) -> list[list[DemandedCall]]:
        """Return the calls in order, cut at barriers: those of one segment run concurrently."""
        segments: list[list[DemandedCall]] = []
        alone = True
        for call in self._calls:
            barrier = _is_of_barrier(call)
            if alone or barrier:
                segments.append([])
            segments[-1].append(call)
            alone = barrier
        return segments

    async def _release(self, call: DemandedCall) -> None:
        """Let a committed call run: hooks first, then whoever must approve it."""
        tool, wiring = call.tool, self._wiring
        if tool is None or call.valid is None or not isinstance(call.call, ToolCall):
            return
        if wiring.before_call is not None:
            await wiring.before_call(call.call, tool)
        if call.outcome is None and _needs_approval(tool, call.valid):
            deny = partial(call.fail, "denied", "denied")
            if wiring.approve is None:
                deny(f"{tool.name} needs approval, and nobody is there to give it")
                return
            answer = await wiring.approve(call.call, tool)
            if answer is not True:
                deny(answer if isinstance(answer, str) else f"the call of {tool.name} was not approved")
                return
        call.released.set()


def _is_of_barrier(call: DemandedCall) -> bool:
    """Tell whether no other call of the turn may run beside this one, whether it has ended or not."""
    return call.tool is not None and call.valid is not None and call.tool.contract.is_barrier


def _was_stopped(guess: Guess) -> bool:
    execution = guess.execution
    return guess.state == "cancelled" or (execution is not None and execution.cancelled and guess.state == "running")


def _needs_approval(tool: Tool, valid: dict[str, Any]) -> bool:
    rule = tool.contract.requires_approval
    return rule if isinstance(rule, bool) else bool(rule(valid))
