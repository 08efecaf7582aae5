"""A tool is made of a function: what a model reads of it, and what it accepts from a model."""

import functools
from datetime import date
from enum import Enum
from typing import Annotated, Literal

import pytest
from agent_runtime.tools import Contract, InvalidArguments, Tool, ToolContext, ToolDefinitionError, as_tools, tool
from pydantic import BaseModel, Field, HttpUrl, SecretStr


class Point(BaseModel):
    x: int
    y: int = 0


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@tool(effect="read")
def search(query: str, limit: int = 3, kind: Literal["all", "new"] = "all") -> str:
    """Search the shop.

    Finds products by name.

    Args:
        query: What to look for.
        limit: How many at most.
    """
    return f"{query}/{limit}/{kind}"


def test_the_schema_comes_from_type_hints_and_the_docstring():
    assert search.name == "search"
    assert search.description == "Search the shop.\n\nFinds products by name."
    assert search.parameters == {
        "type": "object",
        "additionalProperties": False,
        "required": ["query"],
        "properties": {
            "query": {"type": "string", "description": "What to look for."},
            "limit": {"type": "integer", "default": 3, "description": "How many at most."},
            "kind": {"enum": ["all", "new"], "default": "all", "type": "string"},
        },
    }


def test_a_decorated_function_can_still_be_called():
    assert search("a", limit=1) == "a/1/all"


def test_the_bare_decorator_and_a_plain_function_count_as_writes():
    @tool
    async def pay(amount: float) -> None:
        """Pay."""

    def plain(amount: float) -> None:
        """Pay."""

    for item in (pay, *as_tools([plain])):
        assert item.contract.effect == "write"
        assert item.contract.source == "default"
    assert pay.is_async and not as_tools([plain])[0].is_async


def test_defaults_are_filled_and_whole_floats_become_integers():
    assert search.validate({"query": "a", "limit": 10.0}) == {"query": "a", "limit": 10, "kind": "all"}
    assert type(search.validate({"query": "a", "limit": 10.0})["limit"]) is int


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "missing argument 'query'"),
        ({"query": "a", "colour": 1}, "unknown argument 'colour' (known: query, limit, kind)"),
        ({"query": "a", "limit": 1.5}, "limit: Input should be a valid integer"),
        ({"query": 5}, "query: Input should be a valid string, got 5"),
        ({"query": "a", "kind": "old"}, "kind: Input should be 'all' or 'new', got 'old'"),
        ({"query": ["x" * 500]}, "..."),
    ],
)
def test_wrong_arguments_are_explained_in_a_short_line(arguments, message):
    with pytest.raises(InvalidArguments) as caught:
        search.validate(arguments)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 300 and "\n" not in str(caught.value)


def test_many_wrong_arguments_are_not_all_listed():
    with pytest.raises(InvalidArguments, match="and 17 more"):
        search.validate({"query": "a", **{f"extra{i}": i for i in range(21)}})


@pytest.mark.parametrize("arguments", [None, [1], "query", 3])
def test_arguments_that_are_no_object_are_refused(arguments):
    with pytest.raises(InvalidArguments, match="must be a JSON object"):
        search.validate(arguments)


def test_arguments_nested_beyond_all_measure_are_refused():
    deep: object = 1
    for _ in range(100_000):
        deep = [deep]

    @tool(effect="read")
    def take(anything: list) -> str:
        return ""

    with pytest.raises(InvalidArguments):
        take.canonical({"anything": deep})
    while isinstance(deep, list):  # taken apart by hand: a recursive release of this depth is the interpreter's risk
        deep = deep[0]


def test_equal_calls_have_one_canonical_form():
    assert search.canonical({"limit": 3.0, "query": "ä"}) == search.canonical({"query": "ä"})
    assert search.canonical({"query": "ä"}) == '{"kind":"all","limit":3,"query":"ä"}'
    assert search.canonical({"query": "a"}) != search.canonical({"query": "b"})


def test_rich_types_have_a_canonical_form():
    @tool(effect="read")
    def rich(day: date, point: Point, colour: Colour, tags: set[str], ratio: float, site: HttpUrl) -> str:
        return ""

    form = rich.canonical(
        {
            "day": "2024-02-29",
            "point": {"x": 1.0},
            "colour": "red",
            "tags": ["b", "a"],
            "ratio": 2,
            "site": "https://example.com",
        }
    )
    assert form == (
        '{"colour":"red","day":"2024-02-29","point":{"x":1,"y":0},"ratio":2,'
        '"site":"https://example.com/","tags":["a","b"]}'
    )


def test_numbers_that_json_does_not_know_still_compare():
    @tool(effect="read")
    def take(ratio: float) -> str:
        return ""

    assert take.canonical({"ratio": float("inf")}) == '{"ratio":"inf"}'


def test_secrets_stay_out_of_schemas_canonical_forms_and_error_texts_but_still_compare():
    @tool(effect="read", secret=["pin"])
    def login(user: str, password: SecretStr, pin: int = 0) -> str:
        return ""

    assert login.secret_arguments == {"password", "pin"}
    first = login.canonical({"user": "u", "password": "hunter2", "pin": 1234})
    assert "hunter2" not in first and "1234" not in first
    assert first == login.canonical({"user": "u", "password": "hunter2", "pin": 1234})
    assert first != login.canonical({"user": "u", "password": "hunter3", "pin": 1234})
    assert first != login.canonical({"user": "u", "password": "hunter2", "pin": 1235})
    with pytest.raises(InvalidArguments) as caught:
        login.validate({"user": "u", "password": 5512, "pin": "letmein"})
    assert "5512" not in str(caught.value) and "letmein" not in str(caught.value)


def test_the_context_is_injected_and_not_part_of_the_schema():
    @tool(effect="read")
    def whoami(context: ToolContext, loud: bool = False) -> str:
        return context.principal

    assert set(whoami.parameters["properties"]) == {"loud"}
    context = ToolContext(run_id="r", turn=1, principal="ada")
    assert whoami.bind(whoami.validate({}), context)() == "ada"
    assert not any("guess" in name for name in ToolContext.__slots__), "a tool must not see whether it is a guess"


def test_arguments_may_have_names_that_pydantic_keeps_for_itself():
    @tool(effect="read")
    def odd(json: str, copy: int, model_config: str = "x", _hidden: int = 1) -> str:
        return f"{json}{copy}{model_config}{_hidden}"

    context = ToolContext(run_id="", turn=0, principal="")
    assert odd.bind(odd.validate({"json": "j", "copy": 2}), context)() == "j2x1"


def test_positional_only_and_keyword_only_parameters_are_passed_as_they_must_be():
    @tool(effect="read")
    def mixed(a: int, /, b: int, *, c: int = 3) -> str:
        return f"{a}{b}{c}"

    context = ToolContext(run_id="", turn=0, principal="")
    assert mixed.bind(mixed.validate({"a": 1, "b": 2}), context)() == "123"


def test_annotated_constraints_reach_the_schema_and_the_check():
    @tool(effect="read")
    def take(count: Annotated[int, Field(ge=1, le=5)]) -> str:
        """Take."""
        return ""

    assert take.parameters["properties"]["count"] == {"type": "integer", "minimum": 1, "maximum": 5}
    with pytest.raises(InvalidArguments, match="less than or equal to 5"):
        take.validate({"count": 6})


def test_bound_methods_partials_and_callable_objects_are_tools():
    class Shop:
        def find(self, name: str) -> str:
            """Find."""
            return name

        async def __call__(self, name: str) -> str:
            return name

    shop = Shop()
    assert Tool.from_function(shop.find).parameters["required"] == ["name"]
    assert Tool.from_function(shop, name="shop").is_async
    partial = Tool.from_function(functools.partial(shop.find), name="find")
    assert partial.description == "Find." and not partial.is_async


def test_functions_that_cannot_be_described_are_refused_with_the_remedy():
    def starred(*names: str) -> str:
        return ""

    def method(self, name: str) -> str:
        return ""

    def generator():
        yield 1

    class Unknown: ...

    def unknown(value: Unknown) -> str:
        return ""

    def late_context(name: str, context: ToolContext) -> str:
        return ""

    def unresolved(value: "Nowhere") -> str:  # noqa: F821
        return ""

    for function, message in [
        (starred, "its own name"),
        (method, "bound"),
        (generator, "generator"),
        (unknown, "can't be described"),
        (late_context, "first parameter"),
        (unresolved, "Nowhere"),
        (lambda value: "", "can't be called"),
    ]:
        with pytest.raises(ToolDefinitionError, match=message):
            Tool.from_function(function)


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(ToolDefinitionError, match="two tools are called 'search'"):
        as_tools([search, search])
    with pytest.raises(ToolDefinitionError, match="is no tool"):
        as_tools(["search"])  # type: ignore[list-item]


def test_the_schema_hash_changes_with_the_schema_only():
    def version(limit: int) -> str:
        return ""

    first = Tool.from_function(version)
    assert first.schema_hash == first.with_contract(Contract(effect="read")).schema_hash
    assert first.schema_hash != Tool.from_function(version, name="other").schema_hash


async def _remote(arguments):
    return arguments


def test_a_tool_made_of_a_json_schema_checks_what_the_schema_says():
    schema = {
        "type": "object",
        "properties": {
            "n": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "where": {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"]},
        },
        "required": ["n"],
        "additionalProperties": False,
    }
    remote = Tool.from_schema("server.find", "Find.", schema, _remote, Contract(effect="read"), trusted=True)
    assert remote.parameters == schema
    assert remote.canonical({"n": 10.0, "tags": ["a"]}) == remote.canonical({"tags": ["a"], "n": 10})
    for arguments, message in [
        ({}, "missing argument 'n'"),
        ({"n": 1, "m": 2}, "unknown argument 'm'"),
        ({"n": "1"}, "n: must be of type integer, got str"),
        ({"n": True}, "must be of type integer"),
        ({"n": 1, "tags": [1]}, r"tags\[0\]: must be of type string"),
        ({"n": 1, "where": {"x": 3}}, "where.x: must be one of 1, 2"),
        ({"n": 1, "where": {}}, "missing argument 'where.x'"),
    ]:
        with pytest.raises(InvalidArguments, match=message):
            remote.validate(arguments)
    with pytest.raises(ToolDefinitionError, match="must describe an object"):
        Tool.from_schema("x", "", {"type": "array"}, _remote, Contract(), trusted=True)
    with pytest.raises(ToolDefinitionError, match="can't be called"):
        Tool.from_schema("x y", "", {}, _remote, Contract(), trusted=True)
