"""What a server is, as far as it tells, and what may be asked of it beyond the common interface."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agent_runtime.errors import EngineFailed, ModelNotFound

from .address import Endpoint
from .client import ServerClient
from .faults import ServerRejected

ServerKind = Literal["vllm", "sglang", "llama.cpp", "transformers", "other"]

_OWNERS: Mapping[str, ServerKind] = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp"}
_NAMED = 5


@dataclass(slots=True, kw_only=True)
class Served:
    """A model at an endpoint: what it is, and what the server turned out not to take."""

    endpoint: Endpoint
    kind: ServerKind
    version: tuple[int, ...] = ()
    root: str | None = None
    """The folder or hub id that the server loaded, where it says so."""
    context_tokens: int | None = None
    drafts: bool = False
    """Whether it drafts token by token, as its counters tell."""
    refused: set[str] = field(default_factory=set)
    """Fields of requests, and other abilities, that the server refused: they are not tried again."""

    # --- what it can do --------------------------------------------------------------------------------------

    @property
    def tells_ids(self) -> bool:
        """Whether a stream may carry the ids of its prompt and its tokens."""
        return self.kind in ("vllm", "sglang") and "return_token_ids" not in self.refused

    @property
    def takes_ids(self) -> bool:
        """Whether a prompt may be token ids."""
        return self.kind != "transformers" and "prompt_ids" not in self.refused

    @property
    def tells_logprobs(self) -> bool:
        """Whether completions come with log-probabilities, without which a guess has no confidence."""
        return self.kind != "transformers" and "logprobs" not in self.refused

    @property
    def tokenizes(self) -> bool:
        """Whether it renders a conversation to ids on request."""
        return self.kind in ("vllm", "sglang") and "tokenize" not in self.refused

    @property
    def has_metrics(self) -> bool:
        """Whether it may have a page of counters that are known here."""
        return self.kind in ("vllm", "sglang") and "metrics" not in self.refused

    @property
    def parses_calls(self) -> bool:
        """Whether the server itself takes calls out of the text."""
        return "tool_choice" not in self.refused

    # --- fields beyond the common interface ------------------------------------------------------------------

    def chat_fields(self) -> dict[str, Any]:
        """Return what a chat request carries for this server: usage, and token ids where it has them."""
        if self.kind == "transformers":  # sends usage unasked
            return {}
        options: dict[str, Any] = {"include_usage": True}
        fields: dict[str, Any] = {"stream_options": options}
        if self.kind in ("vllm", "sglang"):
            options["continuous_usage_stats"] = True
            fields["return_token_ids"] = True
        if self.kind == "sglang":
            fields["return_prompt_token_ids"] = True
        if self.kind in ("vllm", "sglang") and not self.parses_calls:
            fields["skip_special_tokens"] = False  # the marks of a call may be control tokens
        return self._kept(fields)

    def sampling_fields(self, **values: float | int) -> dict[str, Any]:
        """Return sampling settings that the common interface doesn't have (`top_k`, `min_p`, `repetition_penalty`)."""
        if self.kind in ("vllm", "sglang"):
            return self._kept(values)
        if self.kind == "llama.cpp":
            renamed = {"repeat_penalty" if name == "repetition_penalty" else name: values[name] for name in values}
            return self._kept(renamed)
        return {}

    def background_fields(self) -> dict[str, Any]:
        """Return what puts a request behind others: a lower number is served first (vLLM), a higher one (SGLang)."""
        if self.kind == "vllm":
            return self._kept({"priority": 1})
        if self.kind == "sglang":
            return self._kept({"priority": -1})
        return {}

    def grammar_fields(self, lark: str) -> dict[str, Any]:
        """Return what holds an answer to a grammar that names tokens by id; empty where the server has none."""
        if self.kind == "vllm" and self.version >= (0, 11):
            return self._kept({"structured_outputs": {"grammar": lark}}, ability="grammar")
        if self.kind == "vllm" and self.version >= (0, 8, 5):
            return self._kept({"guided_grammar": lark}, ability="grammar")
        return {}

    def json_fields(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return what holds an answer to a JSON Schema; empty where the server has no such thing."""
        match self.kind:
            case "vllm" if self.version >= (0, 11):
                return self._kept({"structured_outputs": {"json": schema}}, ability="json")
            case "vllm":
                return self._kept({"guided_json": schema}, ability="json")
            case "sglang":
                return self._kept({"json_schema": json.dumps(schema)}, ability="json")
            case "llama.cpp":
                return self._kept({"json_schema": schema}, ability="json")
            case _:
                return {}

    def _kept(self, fields: Mapping[str, Any], *, ability: str | None = None) -> dict[str, Any]:
        if ability in self.refused:
            return {}
        return {name: value for name, value in fields.items() if name not in self.refused}

    # --- learning --------------------------------------------------------------------------------------------

    def learn(self, error: ServerRejected, body: MutableMapping[str, Any]) -> bool:
        """Note what a refused request says of the server, and change it; tell whether it is worth asking again.

        A field beyond the common interface that the error names is left out from now on.
        """
        if error.status not in (400, 404, 422, 501):
            return False
        reason = error.reason
        if (
            "tool_choice" in body
            and body["tool_choice"] == "auto"
            and re.search(r"tool.choice|tool-call-parser", reason)
        ):
            self.refused.add("tool_choice")
            body["tool_choice"] = "none"  # the tools stay in the prompt; the text is parsed here
            if self.kind in ("vllm", "sglang"):
                body["skip_special_tokens"] = False
            return True
        if "max_tokens" in body and "max_completion_tokens" in reason:
            self.refused.add("max_tokens")
            body["max_completion_tokens"] = body.pop("max_tokens")
            return True
        if "reasoning" in reason and any("reasoning" in message for message in body.get("messages", ())):
            self.refused.add("reasoning")
            body["messages"] = [
                {name: value for name, value in message.items() if not name.startswith("reasoning")}
                for message in body["messages"]
            ]
            return True
        named = [name for name in body if name in _OPTIONAL and re.search(rf"\b{name}\b", reason)]
        for name in named:
            self.refused.add(name)
            del body[name]
        return bool(named)


_OPTIONAL = frozenset(
    {
        "stream_options",
        "return_token_ids",
        "return_prompt_token_ids",
        "skip_special_tokens",
        "priority",
        "tool_choice",
    }
)
"""What a message can do without. No setting of sampling is among them: leaving one out would change what is said."""


async def look_at(client: ServerClient, endpoint: Endpoint, model: str) -> Served:
    """Ask a server what it is and whether it has `model`.

    Raises:
        ModelNotFound: it has other models only.
        EngineFailed: it can't be reached, or refuses.
        UsageError: it wants another API key.
    """
    entry = _entry(await _listed(client, endpoint), endpoint, model)
    kind = _OWNERS.get(str(entry.get("owned_by", "")).lower(), "other")
    version: tuple[int, ...] = ()
    if kind in ("vllm", "other"):
        version = _version(await _try(client, endpoint, f"{endpoint.root}/version"))
        kind = "vllm" if version else kind
    if kind == "other" and await _is_transformers(client, endpoint):
        kind = "transformers"
    details = entry.get("meta") if isinstance(entry.get("meta"), dict) else {}  # llama.cpp
    context = entry.get("max_model_len") or (details or {}).get("n_ctx")
    root = entry.get("root")
    return Served(
        endpoint=endpoint,
        kind=kind,
        version=version,
        root=root if isinstance(root, str) and root else (model if kind == "transformers" else None),
        context_tokens=context if isinstance(context, int) and context > 0 else None,
    )


async def _listed(client: ServerClient, endpoint: Endpoint) -> list[dict[str, Any]] | None:
    """Return the models that a server lists; None where it has no list."""
    try:
        found = json.loads(await client.get(endpoint, "models"))
    except ServerRejected as error:
        if error.may_pass:
            raise
        return None
    except ValueError:
        raise EngineFailed(
            f"{endpoint.url}/models is not what an OpenAI-compatible server gives: check the address; most end in /v1"
        ) from None
    models = found.get("data") if isinstance(found, dict) else None
    return [model for model in models if isinstance(model, dict)] if isinstance(models, list) else None


def _entry(models: list[dict[str, Any]] | None, endpoint: Endpoint, model: str) -> dict[str, Any]:
    if not models:  # some servers load what is asked for
        return {}
    for entry in models:
        if entry.get("id") == model:
            return entry
    if any(entry.get("owned_by") == "llamacpp" for entry in models):  # it serves its one model under any name
        return models[0]
    if len(models) > _NAMED:  # a gateway's list may be long, and not whole
        return {}
    names = ", ".join(str(entry.get("id")) for entry in models)
    raise ModelNotFound(f"the server at {endpoint.place} has no model '{model}'; it has {names}")


async def _try(client: ServerClient, endpoint: Endpoint, url: str) -> Any:
    try:
        return json.loads(await client.get(endpoint, url))
    except (EngineFailed, ValueError):
        return None


def _version(found: Any) -> tuple[int, ...]:
    text = found.get("version") if isinstance(found, dict) else None
    match = re.match(r"\d+(\.\d+)*", text) if isinstance(text, str) else None
    return tuple(int(number) for number in match[0].split(".")) if match else ()


async def _is_transformers(client: ServerClient, endpoint: Endpoint) -> bool:
    """Tell whether this is `transformers serve`, which names itself nowhere but in its own list of routes."""
    page = await _try(client, endpoint, f"{endpoint.root}/openapi.json")
    paths = page.get("paths", {}) if isinstance(page, dict) else {}
    return "/load_model" in paths and "/v1/chat/completions" in paths
