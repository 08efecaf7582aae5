"""Invented people, brands and identifiers, split so that training never sees those of a test.

A word or identifier belongs to the test split when its CRC-32 is divisible by five, so both splits come
from the same very large space and need no list to stay apart.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import Literal

Split = Literal["train", "test"]

NOUNS = (
    "lamp", "kettle", "backpack", "chair", "mug", "clock", "blanket", "headset", "keyboard", "umbrella",
    "jacket", "bottle", "tent", "speaker", "mirror", "pillow", "camera", "wallet", "toaster", "scooter",
)  # fmt: skip
CITIES = (
    "Lyon", "Porto", "Leeds", "Turin", "Ghent", "Bergen", "Krakow", "Seville", "Dresden", "Cork", "Graz",
    "Malmo", "Utrecht", "Bilbao", "Basel", "Aarhus", "Tartu", "Split", "Nantes", "Bremen",
)  # fmt: skip

_ONSETS = (
    "b", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "y", "z", "br", "ch", "cr",
    "dr", "fl", "gr", "kl", "ph", "pr", "qu", "sh", "st", "th", "tr", "c", "",
)  # fmt: skip
_NUCLEI = ("a", "e", "i", "o", "u", "a", "e", "i", "o", "ia", "ea", "ou", "y", "ie")
_CODAS = ("", "", "", "", "n", "r", "l", "s", "m", "x", "ck", "nd", "rt", "ll", "tt", "ng")
_COMMON = (
    "anna", "peter", "maria", "john", "laura", "david", "sofia", "thomas", "elena", "martin", "julia", "robert",
    "emma", "lucas", "nina", "oscar", "alice", "daniel", "clara", "simon", "sarah", "paul", "lena", "victor",
    "smith", "weber", "garcia", "rossi", "novak", "jensen", "brown", "miller", "moreau", "kowalski", "silva",
    "murphy", "berg", "fischer", "costa", "taylor",
)  # fmt: skip
_TLDS = ("com", "com", "org", "net", "eu", "de", "io")


def split_of(text: str) -> Split:
    """Return the split an invented word or identifier belongs to."""
    return "test" if zlib.crc32(text.encode()) % 5 == 0 else "train"


class Names:
    """Draws words and identifiers of one split; identifiers are never repeated by one instance."""

    def __init__(self, rng: random.Random, split: Split) -> None:
        self._rng = rng
        self._split = split
        self._used: set[str] = set()

    def word(self) -> str:
        """Return an invented lower-case word of four to ten letters."""
        return self._drawn(self._word)

    def _word(self) -> str:
        rng = self._rng
        while True:
            count = 2 if rng.random() < 0.65 else 3
            parts = [rng.choice(_ONSETS) + rng.choice(_NUCLEI) for _ in range(count)]
            word = "".join(parts) + rng.choice(_CODAS)
            if 4 <= len(word) <= 10:
                return word

    def person_word(self) -> str:
        """Return a first or last name in lower case: mostly invented, sometimes a common one."""
        if self._rng.random() < 0.2:
            return self._drawn(lambda: self._rng.choice(_COMMON), unique=False)
        return self.word()

    def brand(self) -> str:
        """Return an invented brand, capitalised."""
        return self.word().capitalize()

    def person(self) -> tuple[str, str]:
        """Return a full name and an email address."""
        rng = self._rng
        first, last = self.person_word(), self.person_word()
        local = rng.choice(
            (
                f"{first}.{last}", f"{first}.{last}", f"{first}_{last}", f"{first}", f"{last}", f"{first[0]}.{last}",
                f"{first}{rng.randint(1, 99)}", f"{last}{rng.randint(1, 99)}", f"{first}-{last}",
            )
        )  # fmt: skip
        domain = f"{self.word()}.{rng.choice(_TLDS)}"
        return f"{first.capitalize()} {last.capitalize()}", f"{local}@{domain}"

    def identifier(self, prefix: str, digits: int) -> str:
        """Return an identifier such as ``O-4821``, not handed out before."""
        low, high = 10 ** (digits - 1), 10**digits - 1
        return self._drawn(lambda: f"{prefix}-{self._rng.randint(low, high)}")

    def order_id(self) -> str:
        """Return a new order number."""
        return self.identifier("O", 4)

    def date(self) -> str:
        """Return a date ``MM-DD`` before `store.TODAY`."""
        return f"{self._rng.randint(1, 11):02d}-{self._rng.randint(1, 28):02d}"

    def _drawn(self, draw: Callable[[], str], unique: bool = True) -> str:
        while True:
            text = draw()
            if split_of(text) == self._split and not (unique and text in self._used):
                self._used.add(text)
                return text
