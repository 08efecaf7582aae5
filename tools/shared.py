"""What all runs of a process share: versions of resources, and per tool its slots, its rate and its back-off.

Demanded calls wait for a slot and pre-empt guesses; guesses take what is spare or are refused. Runs may live in
different event loops and threads: a lock guards the counts, and nothing waits while holding it.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import anyio

from .contract import Contract
from .event_loops import LoopHandle, shared_time
from .tool import Tool
from .values import RefusalReason
from .versions import Versions


class SharedLimits:
    """The process-wide state of all tools.

    Args:
        guess_threads: Threads that guesses of synchronous tools may hold at the same time. Demanded calls have
            threads of their own, so guesses can't use them up.
    """

    def __init__(self, *, guess_threads: int = 8) -> None:
        self.versions = Versions()
        self.guess_threads = guess_threads
        self.guess_threads_used = 0
        self.lock = threading.Lock()
        self._of_function: weakref.WeakKeyDictionary[Any, ToolLimits] = weakref.WeakKeyDictionary()

    def of(self, tool: Tool) -> ToolLimits:
        """Return the state of a tool; tools made of the same function share it."""
        key: Any = tool.function
        try:
            hash(key), weakref.ref(key)
        except TypeError:
            key = tool
        with self.lock:
            return self._of_function.setdefault(key, ToolLimits(self))


class Slot:
    """The right to run a tool once. Hold it until the tool has really ended."""

    __slots__ = ("_limits", "_released", "guess", "preempt", "threaded")

    def __init__(self, limits: ToolLimits, *, preempt: Callable[[], None] | None, threaded: bool) -> None:
        self._limits = limits
        self._released = False
        self.guess = preempt is not None
        self.preempt = preempt
        self.threaded = threaded

    def promote(self) -> None:
        """Make a guess's slot a demanded call's: it can't be pre-empted any more."""
        self._limits._promote(self)

    def release(self) -> None:
        """Give the slot back, once. May be called from any thread."""
        with self._limits._shared.lock:
            if self._released:
                return
            self._released = True
            woken = self._limits._give_back(self)
        for waiter in woken:
            waiter.wake()


class _Waiter:
    __slots__ = ("_event", "_loop", "capacity", "granted")

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.granted = False
        self._event = anyio.Event()
        self._loop = LoopHandle()

    def wake(self) -> None:
        self._loop.call(self._event.set)

    async def wait(self) -> None:
        await self._event.wait()


class ToolLimits:
    """Slots, rate and back-off of one tool."""

    def __init__(self, shared: SharedLimits) -> None:
        self._shared = shared
        self._running = 0
        self._guesses: dict[Slot, None] = {}  # running and not promoted, oldest first
        self._waiting: deque[_Waiter] = deque()
        self._draining: list[_Waiter] = []
        self._backs_off_until = -math.inf
        self._last_guess = -math.inf
        self._tokens: float | None = None
        self._tokens_at = 0.0

    def try_guess(self, contract: Contract, *, threaded: bool, preempt: Callable[[], None]) -> Slot | RefusalReason:
        """Return a slot for a guess, or why there is none; never waits.

        A guess in a thread can't be stopped, so it leaves at least one slot free; any other can be pre-empted.
        `preempt` is called, in the loop that called this, when a demanded call needs the slot.
        """
        now = shared_time()
        loop = LoopHandle()
        with self._shared.lock:
            if now < self._backs_off_until:
                return "backing_off"
            if contract.max_concurrency is not None:
                free = contract.max_concurrency - self._running - len(self._waiting)
                if free < (2 if threaded else 1):
                    return "no_free_slot"
            if threaded and self._shared.guess_threads_used >= self._shared.guess_threads:
                return "no_free_slot"
            if contract.rate is not None:
                self._refill(contract.rate, now)
                assert self._tokens is not None
                if self._tokens < 2:  # one stays for a demanded call
                    return "rate"
                self._tokens -= 1
            slot = Slot(self, preempt=lambda: loop.call(preempt), threaded=threaded)
            self._running += 1
            self._shared.guess_threads_used += threaded
            self._guesses[slot] = None
            return slot

    async def acquire(self, contract: Contract) -> Slot:
        """Wait until a demanded call may run; guesses that can be stopped make room for it."""
        await self._rate(contract)
        capacity = math.inf if contract.max_concurrency is None else contract.max_concurrency
        with self._shared.lock:
            if self._running < capacity and not self._waiting:
                self._running += 1
                return Slot(self, preempt=None, threaded=False)
            waiter = _Waiter(capacity)
            self._waiting.append(waiter)
            victims = self._victims(len(self._waiting))
        for preempt in victims:
            preempt()
        try:
            await waiter.wait()
        except BaseException:
            with self._shared.lock:
                if not waiter.granted:
                    self._waiting.remove(waiter)
            if waiter.granted:
                Slot(self, preempt=None, threaded=False).release()
            raise
        return Slot(self, preempt=None, threaded=False)

    def back_off(self, seconds: float) -> None:
        """Refuse guesses for that long from now."""
        until = shared_time() + seconds
        with self._shared.lock:
            self._backs_off_until = max(self._backs_off_until, until)

    def guessed_within(self, seconds: float) -> bool:
        """Tell whether a guess of the tool runs, or ended at most that long ago."""
        now = shared_time()
        with self._shared.lock:
            return bool(self._guesses) or now - self._last_guess <= seconds

    async def drain(self, seconds: float) -> None:
        """Stop the guesses that can be stopped and wait until none runs, at most that long."""
        waiter = _Waiter(math.inf)
        with self._shared.lock:
            if not self._guesses:
                return
            self._draining.append(waiter)
            victims = self._victims(len(self._guesses))
        for preempt in victims:
            preempt()
        try:
            with anyio.move_on_after(seconds):
                await waiter.wait()
        finally:
            with self._shared.lock:
                if waiter in self._draining:
                    self._draining.remove(waiter)

    def _victims(self, count: int) -> list[Callable[[], None]]:
        """Return what stops the `count` youngest guesses that can be stopped; stopping one twice is harmless."""
        stoppable = [slot.preempt for slot in reversed(self._guesses) if slot.preempt is not None and not slot.threaded]
        return stoppable[:count]

    def _promote(self, slot: Slot) -> None:
        now = shared_time()
        with self._shared.lock:
            if slot in self._guesses:
                woken = self._forget_guess(slot, now)
            else:
                woken = []
        for waiter in woken:
            waiter.wake()

    def _forget_guess(self, slot: Slot, now: float) -> list[_Waiter]:
        del self._guesses[slot]
        self._last_guess = now
        if self._guesses:
            return []
        drained, self._draining = self._draining, []
        return drained

    def _give_back(self, slot: Slot) -> list[_Waiter]:
        self._running -= 1
        woken: list[_Waiter] = []
        if slot.guess and slot.threaded:
            self._shared.guess_threads_used -= 1
        if slot in self._guesses:
            # In a tool's own thread there is no loop to ask; threads exist under a real clock only.
            woken += self._forget_guess(slot, time.monotonic() if slot.threaded else shared_time())
        while self._waiting and self._running < self._waiting[0].capacity:
            waiter = self._waiting.popleft()
            waiter.granted = True
            self._running += 1
            woken.append(waiter)
        return woken

    async def _rate(self, contract: Contract) -> None:
        if contract.rate is None:
            return
        now = shared_time()
        with self._shared.lock:
            self._refill(contract.rate, now)
            assert self._tokens is not None
            self._tokens -= 1  # below 0: reserved, and due when the bucket is back at 0
            wait = max(0.0, -self._tokens / contract.rate)
        if wait:
            await anyio.sleep(wait)

    def _refill(self, rate: float, now: float) -> None:
        burst = max(1.0, math.ceil(rate))
        if self._tokens is None:
            self._tokens = burst
        else:
            self._tokens = min(burst, self._tokens + max(0.0, now - self._tokens_at) * rate)
        self._tokens_at = now


PROCESS_LIMITS = SharedLimits()
"""What dispatchers share by default."""
