"""The agent's tools: the shop's HTTP interface as async functions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal, TypeAlias, TypedDict

from pydantic import Field

from agent_runtime import _http

Reply: TypeAlias = Any
"""What the shop answers: an object, a list of rows, or an error object the agent can read."""

ToolFunction = Callable[..., Awaitable[Reply]]

CustomerId = Annotated[str, Field(pattern="^C-[0-9]{3}$")]
OrderId = Annotated[str, Field(pattern="^O-[0-9]{4}$")]
ProductId = Annotated[str, Field(pattern="^P-[0-9]{3}$")]
TrackingId = Annotated[str, Field(pattern="^T-[0-9]{4}$")]
# What a pattern fixes, a guess needn't think about: only the digits of a number cost it a step of the model.

SHOP_ERRORS = frozenset({404, 409, 422})
"""HTTP statuses whose body is an error of the shop, meant for the agent: ``{"error":...,"message":...}``."""


class Contract(TypedDict):
    """What a tool does to the shop: its effect and the resource keys it reads and writes."""

    effect: Literal["read", "idempotent", "write"]
    reads: list[str]
    writes: list[str]


EFFECTS: dict[str, Contract] = {
    "find_customer": {"effect": "read", "reads": ["customers"], "writes": []},
    "list_orders": {"effect": "read", "reads": ["orders"], "writes": []},
    "get_order": {"effect": "read", "reads": ["orders"], "writes": []},
    "track_shipment": {"effect": "read", "reads": ["shipments"], "writes": []},
    "search_products": {"effect": "read", "reads": ["products"], "writes": []},
    "get_product": {"effect": "read", "reads": ["products"], "writes": []},
    "get_policy": {"effect": "read", "reads": ["policies"], "writes": []},
    "watch_product": {"effect": "idempotent", "reads": ["products"], "writes": ["watches"]},
    "refund_order": {"effect": "write", "reads": ["orders", "policies"], "writes": ["orders"]},
    "cancel_order": {"effect": "write", "reads": ["orders", "policies"], "writes": ["orders"]},
    "place_order": {"effect": "write", "reads": ["customers", "products"], "writes": ["orders", "products"]},
}
"""The contract of each tool, in the order in which an agent is told of them."""


class ShopClient:
    """The tools of one world, over one HTTP client; an agent is given `tools()`."""

    def __init__(self, http: _http.Client, world: str) -> None:
        self._http = http
        self._path = f"/worlds/{world}/tools/"

    def tools(self) -> list[ToolFunction]:
        """Return the tools as async functions, in the order of `EFFECTS`."""
        return [getattr(self, name) for name in EFFECTS]

    async def find_customer(self, email: str) -> Reply:
        """Find the customer with this email address.

        Args:
            email: The customer's email address.
        """
        return await self._call("find_customer", email=email)

    async def list_orders(self, customer_id: CustomerId) -> Reply:
        """List the orders of a customer.

        Args:
            customer_id: The customer's number, such as C-482.
        """
        return await self._call("list_orders", customer_id=customer_id)

    async def get_order(self, order_id: OrderId) -> Reply:
        """Get one order with its product and tracking number.

        Args:
            order_id: The order's number, such as O-4821.
        """
        return await self._call("get_order", order_id=order_id)

    async def track_shipment(self, tracking_id: TrackingId) -> Reply:
        """Say where a parcel is and when it arrives.

        Args:
            tracking_id: The tracking number, such as T-5093.
        """
        return await self._call("track_shipment", tracking_id=tracking_id)

    async def search_products(self, query: str) -> Reply:
        """Search the products whose name contains every word of the query.

        Args:
            query: Words of the product's name, such as lamp.
        """
        return await self._call("search_products", query=query)

    async def get_product(self, product_id: ProductId) -> Reply:
        """Get one product with its rating.

        Args:
            product_id: The product's number, such as P-317.
        """
        return await self._call("get_product", product_id=product_id)

    async def get_policy(self, topic: Literal["refund", "cancel", "shipping"]) -> Reply:
        """Read the shop's rules on refunds, cancellations or shipping.

        Args:
            topic: Which rules to read.
        """
        return await self._call("get_policy", topic=topic)

    async def watch_product(self, product_id: ProductId, email: str) -> Reply:
        """Notify this email address when a product is back in stock.

        Args:
            product_id: The product's number, such as P-317.
            email: The address to write to.
        """
        return await self._call("watch_product", product_id=product_id, email=email)

    async def refund_order(self, order_id: OrderId) -> Reply:
        """Refund a delivered order to the customer.

        Args:
            order_id: The order's number, such as O-4821.
        """
        return await self._call("refund_order", order_id=order_id)

    async def cancel_order(self, order_id: OrderId) -> Reply:
        """Cancel an order that has not left the shop.

        Args:
            order_id: The order's number, such as O-4821.
        """
        return await self._call("cancel_order", order_id=order_id)

    async def place_order(self, customer_id: CustomerId, product_id: ProductId, quantity: int) -> Reply:
        """Order a product for a customer, who pays for it.

        Args:
            customer_id: The customer's number, such as C-482.
            product_id: The product's number, such as P-317.
            quantity: How many pieces.
        """
        return await self._call("place_order", customer_id=customer_id, product_id=product_id, quantity=quantity)

    async def _call(self, tool: str, **arguments: Any) -> Reply:
        response = await self._http.post(self._path + tool, json=arguments)
        if response.status_code not in SHOP_ERRORS:
            response.raise_for_status()
        return response.json()


@asynccontextmanager
async def open_client(base_url: str, world: str, *, timeout: float = 30.0) -> AsyncIterator[ShopClient]:
    """Open the tools of one world of the shop at `base_url`; `timeout` in seconds holds per request."""
    async with _http.client(base_url, timeout) as http:
        yield ShopClient(http, world)


def shop_tools(http: _http.Client, world: str) -> list[ToolFunction]:
    """Return the tools of one world as async functions that call the shop through `http`."""
    return ShopClient(http, world).tools()
