"""A recorded message in the place of a generation, so that a local session can be probed in the middle of it."""

from __future__ import annotations

from collections.abc import Sequence

from agent_runtime.traces.messages import AssistantMessage, Message

from .base import ProbeResult
from .formats import THINK_OPEN
from .session import LocalSession
from .template import thinks_at


class TeacherForcing:
    """Probes a session at positions of messages that another time, or another model, has written.

    Args:
        session: A conversation of a local engine. It is left without a generation of its own meanwhile.
    """

    def __init__(self, session: LocalSession) -> None:
        self._session = session

    def thinking_ids(self, message: AssistantMessage) -> tuple[int, ...]:
        """Return the tokens of a message's thinking as this model would have written them; of its text if it has none.

        The mark that opens the thinking belongs to it where the chat template doesn't write it already.
        """
        model = self._session.model
        text = message.thinking or message.text
        if not text:
            return ()
        opened = thinks_at(model.template.generation_prompt, "")
        if message.thinking and not opened and THINK_OPEN in model.template.source:
            text = f"{THINK_OPEN}\n{text}"
        return tuple(model.tokenizer.encode(text, add_special_tokens=False))

    async def probe(self, messages: Sequence[Message], written: Sequence[int], *, max_tokens: int) -> ProbeResult:
        """Ask speculator mode for the call that follows `messages` and the tokens in `written`.

        Raises:
            EngineFailed: the template refuses the conversation, the tools have no grammar, or decoding broke.
        """
        await self._session.stand_in(messages, written)
        return await self._session.probe(messages, position=len(written), max_tokens=max_tokens)
