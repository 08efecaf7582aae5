"""Task kinds that need no tool: greetings, thanks, and facts the instructions state."""

from __future__ import annotations

from .builder import Builder
from .instructions import OPENING_HOURS, PHONE, SHOP_NAME

ANSWERS = {
    "greeting": (f"Hello, this is {SHOP_NAME} support. How can I help you?", ("help",)),
    "thanks": (f"You are welcome. Thank you for shopping at {SHOP_NAME}.", ("welcome",)),
    "hours": (f"We are open {OPENING_HOURS}.", (OPENING_HOURS,)),
    "phone": (f"You can call us at {PHONE}.", (PHONE,)),
    "abilities": ("I can find, track, refund and cancel orders, and find and order products.", ("track", "refund")),
    "shop_name": (f"This is the online shop {SHOP_NAME}.", (SHOP_NAME,)),
}


def small_talk(t: Builder) -> None:
    """Answer without a tool."""
    topic = t.rng.choice(tuple(ANSWERS))
    t.ask(topic, frame=topic not in ("greeting", "thanks"))
    text, facts = ANSWERS[topic]
    t.check(*facts)
    t.answer(text)
