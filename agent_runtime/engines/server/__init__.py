"""The server engine: a model behind an OpenAI-compatible interface."""

from .address import Endpoint, ServerSettings
from .engine import ServerEngine
from .faults import ServerRejected, ServerSilent, ServerUnreachable, StreamBroken
from .metrics import ServerCounters
from .statistics import EndpointStatistics, ServerStatistics

__all__ = [
    "Endpoint",
    "EndpointStatistics",
    "ServerCounters",
    "ServerEngine",
    "ServerRejected",
    "ServerSettings",
    "ServerSilent",
    "ServerStatistics",
    "ServerUnreachable",
    "StreamBroken",
]
