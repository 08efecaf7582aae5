"""Who may be started before the agent asks: contracts, the gate, and the operator's catalogue."""

import itertools
import json

import pytest
from agent_runtime.tools import (
    CatalogueError,
    Contract,
    Gate,
    Tool,
    ToolDefinitionError,
    as_tools,
    describe,
    load_catalogue,
    tool,
)
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AnyUrl


def make(name="thing", **contract):
    async def thing() -> str:
        return ""

    return Tool.from_function(thing, name=name, contract=Contract(**contract))


OPEN = Gate(allow_idempotent=True, allow_open_world=True)


def test_reads_pass_the_gate_and_writes_do_not():
    assert Gate().decide(make(effect="read")).allowed
    assert Gate().decide(make(effect="write")).reason == "effect"
    assert Gate().decide(make(effect="idempotent")).reason == "effect"


@pytest.mark.parametrize(
    ("contract", "reason"),
    [
        ({"effect": "write"}, "effect"),
        ({"effect": "idempotent", "destructive": True}, "destructive"),
        ({"effect": "read", "requires_approval": True}, "requires_approval"),
        ({"effect": "read", "requires_approval": lambda arguments: False}, "requires_approval"),
        ({"effect": "read", "sequential": True}, "sequential"),
        ({"effect": "read", "pre_execute": False}, "revoked"),
        ({"effect": "read", "fresh_for": 0}, "revoked"),
    ],
)
def test_no_setting_opens_the_gate_for_these(contract, reason):
    verdict = OPEN.decide(make(**contract))
    assert verdict.reason == reason and verdict.sentence


def test_opt_ins_count_for_all_tools_or_for_those_named():
    write, outside = make("write", effect="idempotent"), make("outside", effect="read", open_world=True)
    assert Gate().decide(outside).reason == "open_world"
    assert OPEN.decide(write).allowed and OPEN.decide(outside).allowed
    named = Gate(allow_idempotent={"write"}, allow_open_world={"elsewhere"})
    assert named.decide(write).allowed
    assert named.decide(outside).reason == "open_world"


@given(
    effect=st.sampled_from(["read", "idempotent", "write"]),
    open_world=st.booleans(),
    destructive=st.booleans(),
    pre_execute=st.sampled_from([None, True, False]),
    gate=st.sampled_from([Gate(), OPEN, Gate(allow_idempotent={"thing"})]),
)
def test_the_gate_never_opens_for_a_write_or_a_destructive_tool(effect, open_world, destructive, pre_execute, gate):
    if effect == "read":
        destructive = False
    item = make(effect=effect, open_world=open_world, destructive=destructive, pre_execute=pre_execute)
    if gate.decide(item).allowed:
        assert effect != "write" and not destructive and pre_execute is not False
        assert effect == "read" or gate.allow_idempotent


def test_a_tool_that_takes_a_url_is_open_world_unless_its_author_says_otherwise():
    @tool(effect="read")
    def by_name(url: str) -> str:
        return ""

    @tool(effect="read")
    def by_type(page: AnyUrl | None = None) -> str:
        return ""

    @tool(effect="read", open_world=False)
    def inside(url: str) -> str:
        return ""

    def plain(uri: str) -> str:
        return ""

    assert by_name.contract.open_world and by_type.contract.open_world
    assert as_tools([plain])[0].contract.open_world
    assert not inside.contract.open_world


@pytest.mark.parametrize(
    "contract",
    [
        {"effect": "reads"},
        {"effect": "read", "destructive": True},
        {"effect": "read", "writes": frozenset({"x"})},
        {"fresh_for": -1},
        {"timeout": 0},
        {"rate": -1},
        {"max_concurrency": 0},
    ],
)
def test_contracts_that_contradict_themselves_are_refused(contract):
    with pytest.raises(ToolDefinitionError):
        Contract(**contract)


def test_the_decorator_names_the_tool_when_its_contract_is_wrong():
    with pytest.raises(ToolDefinitionError, match="tool 'pay': timeout=0"):

        @tool(timeout=0)
        def pay() -> None: ...

    with pytest.raises(ToolDefinitionError, match="give a list of names"):

        @tool(effect="read", reads="orders")
        def find() -> None: ...

    with pytest.raises(ToolDefinitionError, match="names no argument"):

        @tool(secret=["password"])
        def login() -> None: ...


HINTS = ["readOnlyHint", "idempotentHint", "destructiveHint", "openWorldHint"]


def test_server_hints_map_onto_effects_with_the_specifications_defaults():
    assert Contract.from_hints(None) == Contract(effect="write", destructive=True, open_world=True, source="mcp")
    read = Contract.from_hints({"readOnlyHint": True, "openWorldHint": False})
    assert read == Contract(effect="read", source="mcp")
    again = Contract.from_hints({"idempotentHint": True, "destructiveHint": False})
    assert again == Contract(effect="idempotent", open_world=True, source="mcp")
    assert Contract.from_hints({"readOnlyHint": "yes"}).effect == "write", "a hint counts only if it is a boolean"


async def _remote(arguments):
    return ""


@pytest.mark.parametrize("values", list(itertools.product([None, True, False], repeat=4)))
def test_hints_of_an_untrusted_server_open_nothing(values):
    hints = {name: value for name, value in zip(HINTS, values, strict=True) if value is not None}
    item = Tool.from_schema("remote", "", {}, _remote, Contract.from_hints(hints), trusted=False)
    assert not OPEN.decide(item).allowed
    assert item.contract.source == "mcp (untrusted)"


CATALOGUE = """
[tools.remote]
effect = "read"
reads = ["flights"]
open_world = false
fresh_for = 5
[tools.find]
pre_execute = false
[tools.elsewhere]
effect = "write"
"""


def test_the_catalogue_overrides_declarations_and_hints(tmp_path):
    path = tmp_path / "effects.toml"
    path.write_text(CATALOGUE)
    remote = Tool.from_schema("remote", "", {}, _remote, Contract.from_hints({}), trusted=False)
    find = make("find", effect="read")
    rows = {row["name"]: row for row in describe(as_tools([remote, find], catalogue=load_catalogue(path)), Gate())}
    assert rows["remote"]["pre_executable"] and rows["remote"]["source"] == "catalogue"
    assert rows["remote"]["reads"] == ["flights"] and rows["remote"]["fresh_for"] == 5
    assert rows["find"]["reason_code"] == "revoked"
    assert json.loads(json.dumps(rows)) == rows


def test_a_catalogue_may_be_json(tmp_path):
    path = tmp_path / "effects.json"
    path.write_text('{"tools": {"find": {"effect": "read"}}}')
    assert load_catalogue(path).effective("find", Contract()).effect == "read"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("missing.toml", None, "can't read"),
        ("a.toml", "tools = [", "not a valid catalogue"),
        ("a.json", "{", "not a valid catalogue"),
        ("a.toml", "[other]", "one table per tool"),
        ("a.toml", "[tools]\nfind = 'read'", "one table per tool"),
        ("a.toml", "[tools.find]\neffekt = 'read'", "unknown field 'effekt'"),
        ("a.toml", "[tools.find]\neffect = 'reads'", "effect='reads'"),
        ("a.toml", "[tools.find]\nreads = 'orders'", "must be list"),
        ("a.toml", "[tools.find]\ntimeout = true", "must be int or float"),
        ("a.toml", "[tools.find]\neffect = 'read'\nwrites = ['x']", "changes nothing"),
        ("a.toml", "[tools.find]\nreads = [1]", "must be a string"),
    ],
)
def test_a_wrong_catalogue_is_refused_with_file_and_entry(tmp_path, name, text, message):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(CatalogueError, match=message) as caught:
        load_catalogue(path)
    assert str(path) in str(caught.value)


def test_descriptions_say_why_in_words():
    rows = describe(
        [make("a", effect="read"), make("b", effect="idempotent"), make("c", effect="idempotent"), make("d")],
        Gate(allow_idempotent={"c"}),
    )
    assert [(row["name"], row["effect"], row["pre_executable"]) for row in rows] == [
        ("a", "read", True),
        ("b", "idempotent", False),
        ("c", "idempotent", True),
        ("d", "write", False),
    ]
    assert all(row["reason"] for row in rows)
    assert rows[0]["writes"] == [] and rows[3]["writes"] is None
