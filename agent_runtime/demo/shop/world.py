"""The rows a shop starts with: frozen values that travel as plain JSON."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Customer:
    """One account of the shop."""

    customer_id: str
    name: str
    email: str
    tier: str


@dataclass(frozen=True, slots=True)
class Product:
    """One article; ``price`` in whole units of money, ``stock`` in pieces."""

    product_id: str
    name: str
    price: int
    stock: int
    rating: float


@dataclass(frozen=True, slots=True)
class Order:
    """One order of one article; ``date`` is ``MM-DD``, ``tracking_id`` is null until it ships."""

    order_id: str
    customer_id: str
    product_id: str
    item: str
    total: int
    date: str
    status: str
    tracking_id: str | None


@dataclass(frozen=True, slots=True)
class Shipment:
    """Where a parcel is; ``eta`` is ``MM-DD``."""

    tracking_id: str
    status: str
    city: str
    eta: str


@dataclass(frozen=True, slots=True)
class Policy:
    """The shop's rules, which differ from world to world so that they have to be looked up."""

    refund_from: str = "06-01"
    cancel_statuses: tuple[str, ...] = ("processing",)
    shipping_fee: int = 5
    shipping_free_from: int = 80


@dataclass(frozen=True, slots=True)
class World:
    """The initial state of one shop."""

    customers: tuple[Customer, ...] = ()
    products: tuple[Product, ...] = ()
    orders: tuple[Order, ...] = ()
    shipments: tuple[Shipment, ...] = ()
    policy: Policy = Policy()
    next_order: int = 1000

    def to_dict(self) -> dict[str, Any]:
        """Return the world as JSON values: one list per row, fields in declaration order."""
        return {
            "customers": [list(astuple(row)) for row in self.customers],
            "products": [list(astuple(row)) for row in self.products],
            "orders": [list(astuple(row)) for row in self.orders],
            "shipments": [list(astuple(row)) for row in self.shipments],
            "policy": {
                "refund_from": self.policy.refund_from,
                "cancel_statuses": list(self.policy.cancel_statuses),
                "shipping_fee": self.policy.shipping_fee,
                "shipping_free_from": self.policy.shipping_free_from,
            },
            "next_order": self.next_order,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> World:
        """Rebuild the world that `to_dict` described."""
        policy = dict(data["policy"])
        policy["cancel_statuses"] = tuple(policy["cancel_statuses"])
        return cls(
            customers=tuple(Customer(*row) for row in data["customers"]),
            products=tuple(Product(*row) for row in data["products"]),
            orders=tuple(Order(*row) for row in data["orders"]),
            shipments=tuple(Shipment(*row) for row in data["shipments"]),
            policy=Policy(**policy),
            next_order=data["next_order"],
        )
