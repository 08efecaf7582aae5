"""The turn loop: one turn as data flows, from messages to the results of the calls."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import anyio

from agent_runtime.engines.base import CallClosed, Delta, Generated, PromptReady
from agent_runtime.speculator.turn import Progress, guess_at_once, guess_later_calls, speculate, speculate_again
from agent_runtime.traces.events import Prefilled, TextDelta, ThinkingDelta, TurnFinished, TurnStarted

if TYPE_CHECKING:
    from agent_runtime.run import Run
    from agent_runtime.tools.dispatcher import TurnCalls


async def run_turns(run: Run) -> str:
    """Take turns until the model answers without a call; return that answer.

    Raises:
        LimitExceeded: the run used up its turns, calls or tokens.
        EngineFailed: the model can't go on, e.g. the conversation outgrew its context.
    """
    for turn in itertools.count():
        max_tokens = run.budget(turn)
        run.emit(TurnStarted(turn=turn, at=run.now()))
        calls = run.dispatcher.open_turn(turn)
        try:
            generated = await generate_and_guess(run, turn, calls, max_tokens=max_tokens)
        except BaseException:
            calls.abandon()  # the message never became whole: no write has run, and none will
            raise
        outcomes = await calls.commit()
        run.add_to_conversation(generated, outcomes)
        run.emit(TurnFinished(turn=turn, at=run.now()))
        if not generated.message.calls:
            return run.answer(generated)
    raise AssertionError("unreachable")


async def generate_and_guess(run: Run, turn: int, calls: TurnCalls, *, max_tokens: int) -> Generated:
    """Let the agent decode its message while the speculator guesses the calls in it."""
    progress = Progress()
    guessing = run.guessing(turn, calls, progress)
    guessed = guess_at_once(guessing)
    placement = None if guessed else run.placement()
    async with anyio.create_task_group() as beside:
        if guessed and run.predictor is not None:
            beside.start_soon(speculate_again, guessing)
        elif placement == "before":
            await speculate(guessing, placement)
            beside.start_soon(speculate_again, guessing)
        elif placement == "beside":
            beside.start_soon(speculate, guessing, placement)
        if run.quick is not None:
            beside.start_soon(guess_later_calls, guessing)
        generated = await generate(run, turn, calls, progress, max_tokens=max_tokens)
        beside.cancel_scope.cancel()  # a probe that outlives the message can't help it any more
    run.learn(generated)
    return generated


async def generate(run: Run, turn: int, calls: TurnCalls, progress: Progress, *, max_tokens: int) -> Generated:
    """Stream one message; each call goes to the dispatcher the moment its block closes."""
    started = run.now()
    async with run.session.generate(run.messages, sampling=run.sampling, max_tokens=max_tokens) as stream:
        async for item in stream:
            match item:
                case PromptReady(prompt_tokens=prompt, reused_tokens=reused):
                    run.emit(
                        Prefilled(
                            turn=turn,
                            at=run.now(),
                            prompt_tokens=prompt,
                            reused_tokens=reused,
                            prefilled_tokens=prompt - reused,
                        )
                    )
                case Delta(kind="thinking"):
                    progress.advance(item.tokens, thinking=True)
                    run.emit(ThinkingDelta(turn=turn, at=run.now(), text=item.text))
                case Delta():
                    progress.advance(item.tokens, thinking=False)
                    run.emit(TextDelta(turn=turn, at=run.now(), text=item.text))
                case CallClosed():
                    run.count_call()
                    calls.demand(item.call)
                    progress.demand(item.call)
                case Generated():
                    run.finish_generation(turn, item, started=started)
                    return item
            await run.catch_up()
    raise AssertionError("a stream ends with Generated")
