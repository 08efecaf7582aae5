"""The shop's database and its tools: the one implementation behind the oracle and the HTTP backend."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any, NoReturn

from .world import World

ROW_LIMIT = 4
"""Most rows a list tool returns, so that results stay short for a small model."""

_SCHEMA = """
CREATE TABLE customers (customer_id TEXT PRIMARY KEY, name TEXT, email TEXT UNIQUE, tier TEXT);
CREATE TABLE products (product_id TEXT PRIMARY KEY, name TEXT, price INTEGER, stock INTEGER, rating REAL);
CREATE TABLE orders (order_id TEXT PRIMARY KEY, customer_id TEXT, product_id TEXT, item TEXT, total INTEGER,
                     date TEXT, status TEXT, tracking_id TEXT);
CREATE TABLE shipments (tracking_id TEXT PRIMARY KEY, status TEXT, city TEXT, eta TEXT);
CREATE TABLE watches (product_id TEXT, email TEXT, PRIMARY KEY (product_id, email));
CREATE INDEX orders_by_customer ON orders (customer_id);
"""
_TABLES = ("customers", "products", "orders", "shipments", "watches")

READS = ("find_customer", "list_orders", "get_order", "track_shipment", "search_products", "get_product", "get_policy")
WRITES = ("watch_product", "refund_order", "cancel_order", "place_order")

TODAY = "12-01"
"""The date given to orders placed while an agent runs; later than every date of a generated world."""


class ShopError(Exception):
    """Raised when the shop cannot do what a tool call asks; the agent reads it as a JSON object."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Write:
    """One write that took effect, with its arguments."""

    tool: str
    arguments: dict[str, Any]


def to_json(value: object) -> str:
    """Return `value` as the compact JSON text that a tool message carries."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class Store:
    """One shop's state in SQLite. Its methods named in `READS` and `WRITES` are the tools.

    Safe to use from several threads; calls run one at a time.
    """

    def __init__(self, world: World | None = None, path: str = ":memory:") -> None:
        self._lock = threading.RLock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.row_factory = sqlite3.Row
        self._db.executescript(_SCHEMA)
        self._world = World()
        self.calls: Counter[str] = Counter()
        self.writes: list[Write] = []
        self.load(world or World())

    def load(self, world: World) -> None:
        """Replace all state by `world` and forget what was counted."""
        with self._lock:
            db = self._db
            db.execute("BEGIN")
            for table in _TABLES:
                db.execute(f"DELETE FROM {table}")
            db.executemany("INSERT INTO customers VALUES (?,?,?,?)", map(astuple, world.customers))
            db.executemany("INSERT INTO products VALUES (?,?,?,?,?)", map(astuple, world.products))
            db.executemany("INSERT INTO orders VALUES (?,?,?,?,?,?,?,?)", map(astuple, world.orders))
            db.executemany("INSERT INTO shipments VALUES (?,?,?,?)", map(astuple, world.shipments))
            db.execute("COMMIT")
            self._world = world
            self._next_order = world.next_order
            self.calls.clear()
            self.writes.clear()

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def execute(self, tool: str, arguments: dict[str, Any]) -> str:
        """Run one tool and return the JSON text the agent reads; the shop's errors come back as JSON too."""
        return self.perform(tool, arguments)[1]

    def perform(self, tool: str, arguments: dict[str, Any]) -> tuple[str | None, str]:
        """Run one tool; return the error code (None on success) and the JSON text."""
        if tool not in READS and tool not in WRITES:
            return "unknown_tool", to_json({"error": "unknown_tool", "message": f"no tool {tool}"})
        method: Callable[..., object] = getattr(self, tool)
        with self._lock:
            self.calls[tool] += 1
            try:
                result = method(**arguments)
            except ShopError as error:
                return error.code, to_json({"error": error.code, "message": error.message})
            except TypeError:
                message = f"wrong arguments for {tool}: {', '.join(arguments)}"
                return "invalid", to_json({"error": "invalid", "message": message})
            if tool in WRITES:
                self.writes.append(Write(tool, dict(arguments)))
            return None, to_json(result)

    # Reads

    def find_customer(self, email: str) -> dict[str, Any]:
        """Find the customer with this email address."""
        row = self._one("SELECT customer_id, name, tier FROM customers WHERE email = ? COLLATE NOCASE", email)
        return row or _missing(f"no customer {email}")

    def list_orders(self, customer_id: str) -> list[dict[str, Any]]:
        """List the orders of a customer."""
        sql = "SELECT order_id, item, total, date, status FROM orders WHERE customer_id = ? ORDER BY rowid LIMIT ?"
        return self._all(sql, customer_id, ROW_LIMIT) or _missing(f"no orders for {customer_id}")

    def get_order(self, order_id: str) -> dict[str, Any]:
        """Get one order with its product and tracking number."""
        sql = (
            "SELECT order_id, customer_id, item, product_id, total, date, status, tracking_id "
            "FROM orders WHERE order_id = ?"
        )
        return self._one(sql, order_id) or _missing(f"no order {order_id}")

    def track_shipment(self, tracking_id: str) -> dict[str, Any]:
        """Say where a parcel is and when it arrives."""
        row = self._one("SELECT status, city, eta FROM shipments WHERE tracking_id = ?", tracking_id)
        return row or _missing(f"no shipment {tracking_id}")

    def search_products(self, query: str) -> list[dict[str, Any]]:
        """Search the products whose name contains every word of the query; plurals count as singulars."""
        words = [word[:-1] if len(word) > 3 and word.endswith("s") else word for word in query.split()]
        where = " AND ".join("instr(lower(name), lower(?)) > 0" for _ in words) or "0"
        sql = f"SELECT product_id, name, price, stock FROM products WHERE {where} ORDER BY rowid LIMIT ?"
        return self._all(sql, *words, ROW_LIMIT) or _missing(f"no product {query}")

    def get_product(self, product_id: str) -> dict[str, Any]:
        """Get one product with its rating."""
        sql = "SELECT product_id, name, price, stock, rating FROM products WHERE product_id = ?"
        return self._one(sql, product_id) or _missing(f"no product {product_id}")

    def get_policy(self, topic: str) -> dict[str, Any]:
        """Read the shop's rules on refunds, cancellations or shipping."""
        policy = self._world.policy
        if topic == "refund":
            return {"topic": topic, "status": "delivered", "orders_from": policy.refund_from}
        if topic == "cancel":
            return {"topic": topic, "statuses": list(policy.cancel_statuses)}
        if topic == "shipping":
            return {"topic": topic, "fee": policy.shipping_fee, "free_from": policy.shipping_free_from}
        return _missing(f"no policy {topic}")

    # Writes

    def watch_product(self, product_id: str, email: str) -> dict[str, Any]:
        """Notify this email address when a product is back in stock."""
        self.get_product(product_id)
        self._db.execute("INSERT OR IGNORE INTO watches VALUES (?, ?)", (product_id, email))
        return {"product_id": product_id, "watching": True}

    def refund_order(self, order_id: str) -> dict[str, Any]:
        """Refund a delivered order to the customer."""
        order = self.get_order(order_id)
        if order["status"] != "delivered":
            raise ShopError("refused", f"order {order_id} is {order['status']}, not delivered")
        if order["date"] < self._world.policy.refund_from:
            raise ShopError("refused", f"order {order_id} is older than {self._world.policy.refund_from}")
        self._db.execute("UPDATE orders SET status = 'refunded' WHERE order_id = ?", (order_id,))
        return {"order_id": order_id, "status": "refunded", "amount": order["total"]}

    def cancel_order(self, order_id: str) -> dict[str, Any]:
        """Cancel an order that has not left the shop."""
        order = self.get_order(order_id)
        if order["status"] not in self._world.policy.cancel_statuses:
            raise ShopError("refused", f"order {order_id} is already {order['status']}")
        self._db.execute("UPDATE orders SET status = 'cancelled' WHERE order_id = ?", (order_id,))
        return {"order_id": order_id, "status": "cancelled", "amount": order["total"]}

    def place_order(self, customer_id: str, product_id: str, quantity: int) -> dict[str, Any]:
        """Order a product for a customer, who pays for it."""
        product = self.get_product(product_id)
        if self._one("SELECT customer_id FROM customers WHERE customer_id = ?", customer_id) is None:
            _missing(f"no customer {customer_id}")
        if quantity < 1:
            raise ShopError("refused", "quantity must be at least 1")
        if product["stock"] < quantity:
            raise ShopError("refused", f"only {product['stock']} of {product_id} in stock")
        while self._one("SELECT order_id FROM orders WHERE order_id = ?", f"O-{self._next_order}"):
            self._next_order += 1
        order_id, total = f"O-{self._next_order}", product["price"] * quantity
        row = (order_id, customer_id, product_id, product["name"], total, TODAY, "processing", None)
        self._db.execute("INSERT INTO orders VALUES (?,?,?,?,?,?,?,?)", row)
        self._db.execute("UPDATE products SET stock = stock - ? WHERE product_id = ?", (quantity, product_id))
        return {"order_id": order_id, "total": total, "status": "processing"}

    # What changed, for the judge

    def effects(self) -> dict[str, list[Any]]:
        """Return how the state differs from the world it started as, in the form of a task's expectation."""
        with self._lock:
            before = {order.order_id: order.status for order in self._world.orders}
            changed: dict[str, list[Any]] = {"refunded": [], "cancelled": [], "placed": [], "watched": []}
            for row in self._all("SELECT * FROM orders ORDER BY order_id"):
                if row["order_id"] not in before:
                    changed["placed"].append([row["customer_id"], row["product_id"], row["total"]])
                elif row["status"] != before[row["order_id"]]:
                    changed[row["status"]].append(row["order_id"])
            watches = self._all("SELECT product_id, email FROM watches ORDER BY product_id, email")
            changed["watched"] = [[row["product_id"], row["email"]] for row in watches]
            return changed

    def _one(self, sql: str, *values: object) -> dict[str, Any] | None:
        row = self._db.execute(sql, values).fetchone()
        return dict(row) if row is not None else None

    def _all(self, sql: str, *values: object) -> list[dict[str, Any]]:
        return [dict(row) for row in self._db.execute(sql, values)]


def _missing(message: str) -> NoReturn:
    raise ShopError("not_found", message)
