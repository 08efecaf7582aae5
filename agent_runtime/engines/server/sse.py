"""Server-sent events: bytes in pieces of any size to the data of events (WHATWG HTML, "Server-sent events")."""

from __future__ import annotations

from codecs import getincrementaldecoder


class EventStream:
    """Takes a response's body; gives the data of each event that is complete.

    Lines end with CR, LF or both, and with nothing else: the separators that `str.splitlines` also knows may stand in
    JSON unescaped. Names, ids and comments are read over; an event without its blank line is no event.
    """

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")(errors="replace")
        self._line = ""
        self._after_cr = False
        self._data: list[str] = []

    def feed(self, piece: bytes) -> list[str]:
        """Take more of the body; return the data of the events that it completes."""
        text = self._decoder.decode(piece)
        if self._after_cr and text:
            text = text.removeprefix("\n")
            self._after_cr = False
        if text.endswith("\r"):
            self._after_cr = True
        *lines, self._line = (self._line + text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
        return [data for line in lines if (data := self._take(line)) is not None]

    def _take(self, line: str) -> str | None:
        """Take one line; return an event's data where it ends one."""
        if line:
            field, _, value = line.partition(":")
            if field == "data":
                self._data.append(value.removeprefix(" "))
            return None
        data, self._data = self._data, []
        return "\n".join(data) if data else None
