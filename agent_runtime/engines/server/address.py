"""Where a served model is: `openai:NAME@http://host:port/v1`, taken apart and checked."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

from agent_runtime.errors import UsageError

SCHEME = "openai:"
_FORM = "openai:NAME@http://host:port/v1"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")

Calls = Literal["auto", "server", "client"]
Guided = Literal["auto", "grammar", "json", "off"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server of a model: `url` is where its OpenAI-compatible interface begins, without a slash at the end."""

    url: str

    @property
    def place(self) -> str:
        """Host and port, for people."""
        return urlsplit(self.url).netloc

    @property
    def root(self) -> str:
        """Where the server's own interface begins (metrics, version, tokenizer)."""
        return self.url.removesuffix("/v1")

    @property
    def is_here(self) -> bool:
        """Whether the server is on this machine, as far as its address tells."""
        return urlsplit(self.url).hostname in _LOOPBACK

    @property
    def is_private(self) -> bool:
        """Whether nobody on the way can read what is sent: TLS, or the loopback interface."""
        return self.is_here or urlsplit(self.url).scheme == "https"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How a served model is used; times in seconds.

    Raises:
        UsageError: a value lies outside its range; the message names it.
    """

    tokenizer: str | None = None
    """Folder or hub id of the model's tokenizer; None takes the folder that the server names, where it is here too."""
    key_env: str | None = None
    """Environment variable that holds the API key; None takes OPENAI_API_KEY, on private connections only."""
    timeout: float = 120.0
    """Silence after which a request counts as lost."""
    connect_timeout: float = 10.0
    retry_for: float = 60.0
    """How long a request that has given nothing yet is tried again; 0 tries once."""
    calls: Calls = "auto"
    """Who takes calls out of the text: the server's parser, this client, or the client where the server has none."""
    guided: Guided = "auto"
    """What keeps a probe's answer to the tools' schemas; `auto` takes the most exact that the server offers."""
    slowdown_limit: float = 1.5
    """Guessing pauses where its requests make the agents' time per token this many times as long."""

    def __post_init__(self) -> None:
        for name in ("timeout", "connect_timeout"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name}={getattr(self, name)}: give a number of seconds above 0")
        if not self.retry_for >= 0:
            raise UsageError(f"retry_for={self.retry_for}: give a number of seconds, at least 0")
        if not self.slowdown_limit > 1:
            raise UsageError(f"slowdown_limit={self.slowdown_limit}: give a ratio above 1")
        for name, known in (("calls", ("auto", "server", "client")), ("guided", ("auto", "grammar", "json", "off"))):
            if getattr(self, name) not in known:
                raise UsageError(f"{name}={getattr(self, name)}: give one of {', '.join(known)}")


_READERS: dict[str, Callable[[str], Any]] = {
    "tokenizer": str,
    "key_env": str,
    "timeout": float,
    "connect_timeout": float,
    "retry_for": float,
    "calls": str,
    "guided": str,
    "slowdown_limit": float,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """A model's name, the servers that have it, and how they are used."""

    model: str
    endpoints: tuple[Endpoint, ...]
    settings: ServerSettings = ServerSettings()


def is_address(model: object) -> bool:
    """Tell whether a model is named as one that a server has."""
    return isinstance(model, str) and model.startswith(SCHEME)


def parse_address(text: str) -> ServerAddress:
    """Return what `openai:NAME@URL[,URL...][?setting=value&...]` names.

    Raises:
        UsageError: the text has another form, or names a setting that doesn't exist.
    """
    found = re.fullmatch(r"openai:(?P<model>.+?)@(?P<urls>https?://[^?]+)(?:\?(?P<query>.*))?", text.strip(), re.DOTALL)
    if found is None:
        raise UsageError(f"'{_without_secrets(text)}' names no served model: write {_FORM}")
    endpoints = tuple(endpoint(url) for url in found["urls"].split(",") if url.strip())
    return ServerAddress(
        model=found["model"].strip(), endpoints=endpoints, settings=_settings(found["query"] or "", ServerSettings())
    )


def endpoint(url: str) -> Endpoint:
    """Return the server at a URL.

    Raises:
        UsageError: it is no URL of a server, or holds a password.
    """
    url = url.strip()
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise UsageError(
            f"the URL of {parts.netloc.rpartition('@')[2]} holds a user's name or password, which would end up in "
            "logs: put the API key into an environment variable and name it with ?key_env=NAME"
        )
    try:
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or parts.query or parts.fragment:
        raise UsageError(f"'{url}' is no server's URL: write http://host:port/v1")
    return Endpoint(url.rstrip("/"))


def _settings(query: str, defaults: ServerSettings) -> ServerSettings:
    given: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        reader = _READERS.get(name)
        if reader is None:
            hint = "; a key stays in an environment variable, which ?key_env=NAME names" if "key" in name else ""
            raise UsageError(f"a served model has no setting '{name}'{hint}; there are {', '.join(_READERS)}")
        try:
            given[name] = reader(value)
        except ValueError:
            raise UsageError(f"{name}={value}: give a number") from None
    return replace(defaults, **given)


def _without_secrets(text: str) -> str:
    """Return what a user typed as it may be shown: without what may be a password."""
    return re.sub(r"//[^/@]*@", "//...@", text.partition("?")[0])
