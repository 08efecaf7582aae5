"""The shop over HTTP: the same bytes as the store, separate worlds, counted writes, a clean end."""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from agent_runtime import _http
from agent_runtime.demo.shop.backend import DEFAULT_LATENCY_MS, ShopBackend
from agent_runtime.demo.shop.client import EFFECTS, shop_tools
from agent_runtime.demo.shop.demo_world import DEMO_WORLD
from agent_runtime.demo.shop.generate import generate
from agent_runtime.demo.shop.judge import Task
from agent_runtime.demo.shop.schemas import tools_schema
from agent_runtime.demo.shop.store import READS, WRITES, Store, Write

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as opened:
        yield opened


async def test_the_backend_serves_the_bytes_of_the_store(store: Store) -> None:
    async with ShopBackend(latency_ms=0) as backend, _http.client(backend.base_url) as http:
        for trajectory in generate(8, "test", 25):
            task = Task.from_dict(trajectory)
            task.start_world(store)
            backend.add_world(task.task_id, task.world)
            for message in trajectory["messages"]:
                for call in message.get("tool_calls", ()):
                    name, arguments = call["function"]["name"], call["function"]["arguments"]
                    reply = await http.post(f"/worlds/{task.task_id}/tools/{name}", json=arguments)
                    assert reply.content.decode() == store.execute(name, arguments)
            assert backend.store(task.task_id).effects() == store.effects()


async def test_a_write_is_counted_and_logged_and_a_refused_one_only_counted() -> None:
    async with ShopBackend(latency_ms=0) as backend:
        backend.add_world("one", DEMO_WORLD)
        async with backend.client("one") as shop:
            assert await shop.cancel_order("O-4007") == {"order_id": "O-4007", "status": "cancelled", "amount": 34}
            again = await shop.cancel_order("O-4007")
            assert again == {"error": "refused", "message": "order O-4007 is already cancelled"}
        assert backend.calls("one") == {"cancel_order": 2}
        assert backend.writes("one") == (Write("cancel_order", {"order_id": "O-4007"}),)


async def test_worlds_do_not_share_state() -> None:
    async with ShopBackend(latency_ms=0) as backend:
        for name in ("one", "two"):
            backend.add_world(name, DEMO_WORLD)
        async with backend.client("one") as one, backend.client("two") as two:
            await one.refund_order("O-8167")
            assert (await one.get_order("O-8167"))["status"] == "refunded"
            assert (await two.get_order("O-8167"))["status"] == "delivered"
        assert backend.writes("two") == ()


async def test_calls_of_one_world_may_run_at_the_same_time() -> None:
    async with ShopBackend(latency_ms=0) as backend:
        backend.add_world("one", DEMO_WORLD)
        async with backend.client("one") as shop, anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(shop.watch_product, "P-907", "a@example.org")
        assert backend.calls("one") == {"watch_product": 20}
        assert backend.store("one").effects()["watched"] == [["P-907", "a@example.org"]]


async def test_a_call_that_is_given_up_has_been_executed_and_is_counted() -> None:
    async with ShopBackend(latency_ms={"refund_order": 500.0}) as backend:
        store = backend.add_world("one", DEMO_WORLD)
        async with backend.client("one") as shop, anyio.create_task_group() as group:
            group.start_soon(shop.refund_order, "O-8167")
            while not store.writes:
                await anyio.sleep(0)
            group.cancel_scope.cancel()
        assert backend.calls("one") == {"refund_order": 1}


async def test_wrong_requests_get_an_error_the_agent_can_read() -> None:
    async with ShopBackend(latency_ms=0) as backend, _http.client(backend.base_url) as http:
        backend.add_world("one", DEMO_WORLD)
        for path, body, status, code in (
            ("/worlds/two/tools/get_order", {}, 404, "unknown_world"),
            ("/worlds/one/tools/drop_table", {}, 404, "unknown_tool"),
            ("/worlds/one/tools/get_order", [], 422, "invalid"),
            ("/worlds/one/tools/get_order", {"id": "O-1"}, 422, "invalid"),
            ("/worlds/one/tools/get_order", {"order_id": "O-1"}, 404, "not_found"),
        ):
            reply = await http.post(path, json=body)
            assert (reply.status_code, reply.json()["error"]) == (status, code)


async def test_the_service_ends_with_its_thread_and_can_start_again() -> None:
    backend = ShopBackend(latency_ms=0)
    for _ in range(2):
        async with backend:
            assert any(thread.name == "shop-backend" for thread in threading.enumerate())
        assert not any(thread.name == "shop-backend" for thread in threading.enumerate())
    with pytest.raises(RuntimeError, match="async with"):
        _ = backend.base_url


async def test_the_service_ends_when_the_body_fails_or_is_cancelled() -> None:
    with pytest.raises(ZeroDivisionError):
        async with ShopBackend(latency_ms=0):
            raise ZeroDivisionError
    with anyio.CancelScope() as scope:
        async with ShopBackend(latency_ms=0):
            scope.cancel()
            await anyio.sleep_forever()
    assert not any(thread.name == "shop-backend" for thread in threading.enumerate())


async def test_tools_are_async_functions_named_as_in_the_schemas() -> None:
    async with _http.client("http://127.0.0.1:1") as http:
        tools = shop_tools(http, "one")
        assert [tool.__name__ for tool in tools] == list(EFFECTS)
        for tool, schema in zip(tools, tools_schema(), strict=True):
            assert inspect.iscoroutinefunction(tool)
            function = schema["function"]
            assert function["name"] == tool.__name__
            assert list(inspect.signature(tool).parameters) == function["parameters"]["required"]
            assert all(value["description"] for value in function["parameters"]["properties"].values())


def test_contracts_and_store_agree_on_what_writes() -> None:
    assert tuple(EFFECTS) == READS + WRITES
    for name, contract in EFFECTS.items():
        assert (contract["effect"] == "read") == (name in READS)
        assert bool(contract["writes"]) == (name in WRITES)


def test_latency_is_decided_by_the_request_and_stays_in_its_span() -> None:
    first, second, other = ShopBackend(), ShopBackend(), ShopBackend(seed=1)
    spread = set()
    for name, (low, high) in DEFAULT_LATENCY_MS.items():
        for number in range(20):
            arguments: dict[str, Any] = {"n": number}
            seconds = first.latency_seconds("w", name, arguments)
            assert seconds == second.latency_seconds("w", name, arguments)
            assert seconds != other.latency_seconds("w", name, arguments)
            assert low <= seconds * 1000 <= high
            spread.add(round(seconds, 6))
    assert len(spread) > 200


def test_a_latency_for_a_tool_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no tool get_weather"):
        ShopBackend(latency_ms={"get_weather": 5.0})


def test_tool_results_are_compact_json_with_letters_as_they_are(store: Store) -> None:
    store.load(DEMO_WORLD)
    text = store.execute("get_order", {"order_id": "O-7327"})
    assert text == json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)
    assert store.execute("find_customer", {"email": "j\u00fcrg@example.org"}).count("j\u00fcrg") == 1
