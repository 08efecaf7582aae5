"""One message as it streams from a server: chunks to thinking, text and calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent_runtime.engines.base import CallClosed, Delta, EngineEvent, Generated, PromptReady
from agent_runtime.engines.detokenize import Detokenizer
from agent_runtime.engines.formats import THINK_CLOSE, THINK_OPEN
from agent_runtime.errors import EngineFailed
from agent_runtime.tools.values import MalformedCall, ToolCall
from agent_runtime.traces.events import Drafting, FinishReason
from agent_runtime.traces.messages import AssistantMessage

from .address import Endpoint
from .calls import CallAssembly
from .faults import StreamBroken
from .metrics import of_request
from .model_text import LocalText, text_parser
from .usage import RequestUsage

if TYPE_CHECKING:
    from agent_runtime.engines.parsing import MessageParser, Part

_WHOLE = frozenset({"stop", "tool_calls", "function_call", "length", "eos", "eos_token"})


class Reading:
    """Reads one message.

    Where a chunk holds its tokens' ids and the model's tokenizer is here, the ids are read, exactly as the local engine
    reads its own: whatever parser the server runs then makes no difference. Else the server's reasoning, text and
    calls are taken as they come; marks that its parsers left in the text are read too.

    Args:
        endpoint: Whose words these are, for errors.
        text: The model's tokenizer, if it is here.
        functions: The tools as function schemas.
        by_ids: Read ids where they come.
        server_calls: Take calls that the server found in the text.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        text: LocalText | None,
        functions: Sequence[Mapping[str, Any]],
        by_ids: bool,
        server_calls: bool,
    ) -> None:
        self._endpoint = endpoint
        self._text = text
        self._functions = functions
        self._by_ids = by_ids and text is not None
        self._server_calls = server_calls
        self._detokenizer = Detokenizer(text.decode) if text is not None else None
        self._parser: MessageParser | None = None
        self._reasoning_open = False
        self._assembly = CallAssembly()
        self._finish: str | None = None
        self._stop_string = False
        self._told = False
        self._told_cached = 0
        self._steps = 0
        self._thinking = ""
        self._said = ""
        self._calls: list[ToolCall | MalformedCall] = []
        self.usage = RequestUsage()
        self.prompt_ids: tuple[int, ...] | None = None
        self.ids: list[int] | None = []
        """The message's ids so far; None where the server doesn't tell them."""
        self.written = ""
        """The message's text so far, marks included where the server leaves them in."""
        self.tokens = 0
        self.thinking_tokens = 0
        self.drafting: Drafting | None = None

    def take(self, chunk: Mapping[str, Any]) -> list[EngineEvent]:
        """Take one chunk; return what it adds to the message.

        Raises:
            EngineFailed: the server withholds the message.
        """
        before = self.tokens
        self.usage = self.usage.plus(dict(chunk))
        self.drafting = of_request(chunk.get("metrics")) or self.drafting
        choices = chunk.get("choices") or ()
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        self._take_prompt_ids(chunk.get("prompt_token_ids") or choice.get("prompt_token_ids"))
        delta = choice.get("delta") or {}
        ids = choice.get("token_ids")
        events = self._prompt_ready()
        if isinstance(ids, list) and self.ids is not None:
            self.ids += ids
        if isinstance(ids, list) and ids and self._by_ids:
            events += self._take_ids(ids)
        elif not (self._by_ids and self.ids):
            events += self._take_delta(delta, ids)
        if choice.get("finish_reason"):
            self._finish = str(choice["finish_reason"])
            self._stop_string = isinstance(choice.get("stop_reason") or choice.get("matched_stop"), str)
        self._steps += self.tokens > before
        return events

    def end(self) -> list[EngineEvent]:
        """Take the stream's end; return the last events.

        Raises:
            StreamBroken: the message isn't whole.
            EngineFailed: the server broke it off.
        """
        if self._finish is None:
            raise StreamBroken(self._endpoint, "it ended before the message did")
        if self._finish not in _WHOLE:
            raise EngineFailed(
                f"the server at {self._endpoint.place} broke the message off ({self._finish}): "
                "its log or its content filter says why"
            )
        cut = self._finish == "length"
        parts: list[Part] = []
        if self._by_ids and self.ids and self._detokenizer is not None:
            parts += self._fed(self._detokenizer.flush())
        if self._parser is not None:
            parts += self._parser.finish(whole=not cut and not self._stop_string)
        parts += self._assembly.close(cut=cut)
        events = self._as_events(parts)
        usage = self.usage
        prompt_tokens = usage.prompt_tokens
        if prompt_tokens is None:
            prompt_tokens = len(self.prompt_ids or ())
        cached = min(usage.cached_tokens or 0, prompt_tokens)
        if not self._told:
            self._told, self._told_cached = True, cached
            events.insert(0, PromptReady(prompt_tokens=prompt_tokens, reused_tokens=cached))
        completion_tokens = usage.completion_tokens if usage.completion_tokens is not None else self.tokens
        message = AssistantMessage(text=self._said, thinking=self._thinking, calls=tuple(self._calls))
        events.append(
            Generated(
                message=message,
                finish_reason=self._reason(message),
                prompt_tokens=prompt_tokens,
                completion_tokens=completion_tokens,
                thinking_tokens=min(
                    completion_tokens,
                    self.thinking_tokens if usage.reasoning_tokens is None else usage.reasoning_tokens,
                ),
                forwards=self.forwards(completion_tokens),
                slowdown_ms=0.0,
                drafting=() if self.drafting is None else (self.drafting,),
                reused_later=max(0, cached - self._told_cached),
            )
        )
        return events

    def forwards(self, completion_tokens: int) -> int:
        """Return the decode steps after the prompt's, which gave the first token.

        By what the server tells of its drafts; a server that tells of none is taken to decode token by token.
        """
        accepted = self.drafting.accepted_tokens if self.drafting is not None else 0
        if accepted >= completion_tokens:  # the count is the server's over everyone: it can't be this message's alone
            return max(0, min(self._steps, completion_tokens) - 1)
        return max(0, completion_tokens - accepted - 1)

    def _reason(self, message: AssistantMessage) -> FinishReason:
        if self._finish == "length":
            return "length"
        if message.calls:
            return "calls"
        return "stop_string" if self._stop_string else "stop"

    def _prompt_ready(self) -> list[EngineEvent]:
        """Tell of the prompt as soon as the server does."""
        count = self.usage.prompt_tokens
        if self._told or count is None:
            return []
        self._told, self._told_cached = True, min(self.usage.cached_tokens or 0, count)
        return [PromptReady(prompt_tokens=count, reused_tokens=self._told_cached)]

    def _take_prompt_ids(self, ids: Any) -> None:
        if self.prompt_ids is None and isinstance(ids, list) and ids:
            self.prompt_ids = tuple(ids)

    def _take_ids(self, ids: Sequence[int]) -> list[EngineEvent]:
        text, detokenizer = self._text, self._detokenizer
        assert text is not None and detokenizer is not None
        parts: list[Part] = []
        for token in ids:
            self.tokens += 1
            if token not in text.eos_ids:
                parts += self._fed(detokenizer.push(token))
                self.thinking_tokens += self._parser is not None and self._parser.is_thinking
        return self._as_events(parts)

    def _take_delta(self, delta: Mapping[str, Any], ids: Any) -> list[EngineEvent]:
        if self.tokens and not isinstance(ids, list):
            self.ids = None
        reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
        content = delta.get("content") or ""
        calls = delta.get("tool_calls") or []
        self._count(ids, bool(reasoning or content or calls))
        parts: list[Part] = []
        if isinstance(reasoning, str) and reasoning:
            parts += self._fed(reasoning, reasoning=True)
            self.thinking_tokens += 1
        if isinstance(content, str) and content:
            if content.strip():
                parts += self._assembly.close()
            parts += self._fed(content)
            self.thinking_tokens += self._parser is not None and self._parser.is_thinking
        if calls and self._server_calls:
            parts += self._assembly.take(calls)
        return self._as_events(parts)

    def _count(self, ids: Any, something: bool) -> None:
        """Count the chunk's tokens: by their ids, by the usage so far, or as one."""
        if isinstance(ids, list):
            self.tokens += len(ids)
        elif self.usage.completion_tokens is not None and self.usage.completion_tokens > self.tokens:
            self.tokens = self.usage.completion_tokens
        elif something:
            self.tokens += 1

    def _fed(self, text: str, *, reasoning: bool = False) -> Iterator[Part]:
        """Feed the parser; what the server split off as reasoning goes back between its marks first."""
        if reasoning and not self._reasoning_open:
            self._parser = self._parser or text_parser(self._functions)
            self._reasoning_open, text = True, f"{THINK_OPEN}\n{text}"
        elif not reasoning and self._reasoning_open:
            self._reasoning_open = False
            text = f"\n{THINK_CLOSE}\n\n{text}"
        if self._parser is None:
            self._parser = self._text.parser(self._functions) if self._text else text_parser(self._functions)
        self.written += text
        yield from self._parser.feed(text)

    def _as_events(self, parts: Sequence[Part]) -> list[EngineEvent]:
        from agent_runtime.engines.parsing import merged

        events: list[EngineEvent] = []
        for part in merged(parts):
            if isinstance(part, ToolCall | MalformedCall):
                self._calls.append(part)
                events.append(CallClosed(call=part))
                continue
            kind, text = part
            if kind == "thinking":
                self._thinking += text
            else:
                self._said += text
            events.append(Delta(kind=kind, text=text, tokens=self.tokens))
        return events
