"""The prompts that a model without an agent of its own is measured on: ten requests for a tool, ten edits of code."""

from __future__ import annotations

from agent_runtime.engines.base import ToolSchema


def _tool(name: str, description: str, **properties: dict[str, object]) -> ToolSchema:
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return ToolSchema(name=name, description=description, parameters=schema)


TOOL_INSTRUCTIONS = "You help the staff of a bicycle workshop. Call a tool for whatever you can't know."
TOOLS = (
    _tool("find_customer", "Find a customer by e-mail address.", email={"type": "string"}),
    _tool("get_repair", "Return the state of a repair.", repair_id={"type": "string"}),
    _tool("list_repairs", "List a customer's repairs.", customer_id={"type": "string"}),
    _tool(
        "search_parts",
        "Search the stock of parts.",
        query={"type": "string"},
        max_price={"type": "number"},
    ),
    _tool(
        "book_slot",
        "Book a slot on a stand.",
        day={"type": "string", "description": "YYYY-MM-DD"},
        hour={"type": "integer", "minimum": 8, "maximum": 18},
        stand={"enum": ["wheel", "frame", "suspension"]},
    ),
    _tool(
        "send_message",
        "Send a customer a text.",
        customer_id={"type": "string"},
        text={"type": "string"},
    ),
)
TOOL_REQUESTS = (
    "How far is repair R-20418?",
    "Who is the customer with the address mira.holt@example.org?",
    "Book the suspension stand on 2027-03-09 at 14 o'clock, please.",
    "Do we have a 29 inch tubeless rim for at most 85 euros?",
    "Which repairs has customer C-7713 brought in?",
    "Tell customer C-1902 that the new brake pads have come and the bicycle can be fetched from 4 pm on.",
    "Customer C-5540 asks about her repair. It should be R-20977; what is its state?",
    "Find me an 11-speed chain that costs no more than 32.50.",
    "Is there anyone registered as t.okafor@cycling.example?",
    "We need the wheel stand for the Brandt bicycle on 2027-04-22 at 9.",
)
CODE_INSTRUCTIONS = "You edit code. Answer with the whole changed file in one Python block and nothing else."
CODE_EDITS = (
    (
        "Rename the parameter `n` to `count` and give it the default 10.",
        """
def first_squares(n):
    result = []
    for value in range(n):
        result.append(value * value)
    return result
""",
    ),
    (
        "Add type hints to both functions.",
        """
def mean(values):
    if not values:
        raise ValueError("mean of nothing")
    return sum(values) / len(values)


def spread(values):
    middle = mean(values)
    return max(abs(value - middle) for value in values)
""",
    ),
    (
        "Close the file even if reading fails, with a context manager.",
        """
import json


def load_settings(path):
    stream = open(path, encoding="utf-8")
    settings = json.load(stream)
    stream.close()
    return settings
""",
    ),
    (
        "Make `withdraw` raise a ValueError if the balance doesn't suffice.",
        """
class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        self.balance += amount

    def withdraw(self, amount):
        self.balance -= amount
""",
    ),
    (
        "Return the three longest words instead of one.",
        """
def longest_word(text):
    words = text.split()
    longest = ""
    for word in words:
        if len(word) > len(longest):
            longest = word
    return longest
""",
    ),
    (
        "The loop misses the last element. Correct it.",
        """
def pairwise_sums(values):
    sums = []
    for index in range(len(values) - 2):
        sums.append(values[index] + values[index + 1])
    return sums
""",
    ),
    (
        "Turn this class into a frozen dataclass.",
        """
class Point:
    def __init__(self, x, y, label=""):
        self.x = x
        self.y = y
        self.label = label

    def distance_to(self, other):
        return ((self.x - other.x) ** 2 + (self.y - other.y) ** 2) ** 0.5
""",
    ),
    (
        "Give `retry` a parameter `attempts` that replaces the constant 3.",
        """
import time


def retry(action, delay=0.5):
    for attempt in range(3):
        try:
            return action()
        except OSError:
            if attempt == 2:
                raise
            time.sleep(delay)
""",
    ),
    (
        "Write the list comprehension as a plain loop.",
        """
def invoice_lines(items, currency):
    lines = [f"{item.name}: {item.price:.2f} {currency}" for item in items if item.price > 0]
    return "\\n".join(lines)
""",
    ),
    (
        "Add a method `remove(name)` that raises KeyError where the name is unknown.",
        """
class Registry:
    def __init__(self):
        self._entries = {}

    def add(self, name, entry):
        if name in self._entries:
            raise KeyError(f"{name} is taken")
        self._entries[name] = entry

    def get(self, name):
        return self._entries[name]
""",
    ),
)
