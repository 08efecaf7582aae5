"""Forwards of fixed shape compute what the lean executor computes, and a replay depends on its table alone."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from agent_runtime.decoding import graph_shapes
from agent_runtime.decoding.errors import ModelUnsupported
from agent_runtime.decoding.executor import FINAL, Block, ancestors, choose_executor, depths
from agent_runtime.decoding.fused import compiled
from agent_runtime.decoding.graph_shapes import BATCHES, NOWHERE, QUERY_LENGTHS, GraphKey
from agent_runtime.decoding.graphs import GraphExecutor
from agent_runtime.decoding.lean import LeanExecutor
from agent_runtime.decoding.static_attention import PLAIN, SplitAttention
from agent_runtime.decoding.static_cache import LanePool, StaticCache
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from .conftest import CONFIGS, VOCAB, build

SPLIT = SplitAttention(shortest=4)  # short contexts come in several chunks too


class Tape(TorchDispatchMode):
    """What a CUDA graph is, on any device: operations on fixed tensors, noted once and run again and again."""

    def __init__(self) -> None:
        super().__init__()
        self._operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self._operations.append((function, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        made: dict[int, torch.Tensor] = {}

        def now(noted: torch.Tensor) -> torch.Tensor:
            return made.get(id(noted), noted)

        for function, args, kwargs, result in self._operations:
            args, kwargs = tree_map_only(torch.Tensor, now, (args, kwargs))
            again = function(*args, **kwargs)
            then = result if isinstance(result, tuple) else (result,)
            for noted, tensor in zip(then, again if isinstance(again, tuple) else (again,), strict=True):
                for old, new in zip(noted, tensor, strict=True) if isinstance(noted, list) else [(noted, tensor)]:
                    made[id(old)] = new


class TapedExecutor(GraphExecutor):
    """Replays tapes where there is no GPU."""

    def __init__(self, model: Any, **options: Any) -> None:
        super().__init__(model, **options, capture=False)
        self._captures = True
        self._memory = None
        self.captures = 0

    def _capture(self, graph: Any) -> Callable[[], object]:
        self.captures += 1
        self._compute(graph)  # the warm-up, as on the device
        with Tape() as tape:
            self._compute(graph)
        return tape.replay

    def _start_over(self) -> None:
        self._generation = self.pool.generation
        self._graphs.clear()


def some_ids(count: int, seed: int = 0) -> list[int]:
    return torch.randint(0, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def filled(executor: LeanExecutor, lengths: Sequence[int]) -> list[Any]:
    """Caches of so many tokens each."""
    caches = [executor.new_cache(length) for length in lengths]
    for index, cache in enumerate(caches):
        for start in range(0, lengths[index], 40):
            part = some_ids(lengths[index], index)[start : start + 40]
            executor.forward([Block(cache, part, len(part))])
    return caches


def assert_equal(ours: torch.Tensor, expected: torch.Tensor) -> None:
    assert ours.shape == expected.shape
    assert (ours - expected).abs().max() <= 1e-5 * expected.abs().max()


class Pair:
    """The lean executor and one of fixed shapes, led through the same."""

    def __init__(self, name: str, **options: Any) -> None:
        self.lean = LeanExecutor(build(CONFIGS[name]()))
        self.graph = TapedExecutor(build(CONFIGS[name]()), **options)
        self.rows: list[tuple[Any, Any]] = []

    def add(self, room: int) -> int:
        self.rows.append((self.lean.new_cache(room), self.graph.new_cache(room)))
        return len(self.rows) - 1

    def forward(
        self, parts: Sequence[tuple[int, list[int], int, tuple[int, ...]]], taps: Sequence[int] = ()
    ) -> torch.Tensor:
        both = []
        for side, executor in enumerate((self.lean, self.graph)):
            blocks = [Block(self.rows[row][side], ids, first, tree) for row, ids, first, tree in parts]
            both.append(executor.forward_tapped(blocks, taps))
        (expected, states), (ours, our_states) = both
        if len(expected):
            assert_equal(ours, expected)
        for state, our_state in zip(states, our_states, strict=True):
            if len(state):
                assert_equal(our_state, state)
        for lean, graph in self.rows:
            assert lean.length == graph.length
        return ours


def random_tree(rng: random.Random, size: int) -> tuple[int, ...]:
    return tuple(rng.randrange(-1, index) for index in range(size))


@pytest.mark.parametrize(
    ("name", "attention"),
    [("qwen3", SPLIT), ("qwen3", PLAIN), ("llama-biased", SPLIT), ("llama3-rope", PLAIN), ("qwen2", SPLIT),
     ("mistral", PLAIN)],
)  # fmt: skip
@pytest.mark.parametrize("seed", range(3))
@torch.inference_mode()
def test_whatever_rows_do_their_logits_are_the_lean_executors(name: str, attention: Any, seed: int) -> None:
    rng = random.Random(seed)
    pair = Pair(name, attention=attention, lanes=1, capacity=16)
    for _ in range(2):
        pair.add(rng.choice([1, 30]))
    for _ in range(25):
        match rng.choice(["block", "block", "block", "fork", "crop", "tree", "new", "drop"]):
            case "new" if len(pair.rows) < 9:
                pair.add(rng.choice([1, 10, 60]))
            case "drop" if len(pair.rows) > 1:
                pair.rows.pop(rng.randrange(len(pair.rows)))
            case "crop":
                lean, graph = rng.choice(pair.rows)
                length = rng.randrange(lean.length + 1)
                pair.lean.crop(lean, length)
                pair.graph.crop(graph, length)
            case "fork" if len(pair.rows) < 9:
                lean, graph = rng.choice(pair.rows)
                length, room = rng.randrange(lean.length + 1), rng.randrange(60)
                a, copied = pair.lean.fork(lean, length, room)
                b, copied_too = pair.graph.fork(graph, length, room)
                assert copied == copied_too
                pair.rows.append((a, b))
            case "tree":
                row = rng.randrange(len(pair.rows))
                lean, graph = pair.rows[row]
                trunk, tree = rng.randrange(1, 4), random_tree(rng, rng.randrange(1, 8))
                pair.forward([(row, some_ids(trunk + len(tree), rng.randrange(99)), 0, tree)])
                base, path = lean.length - len(tree), []
                at = rng.randrange(len(tree))
                while at >= 0:
                    path.insert(0, base + at)
                    at = tree[at]
                pair.lean.keep(lean, base, path)
                pair.graph.keep(graph, base, path)
            case _:
                parts = []
                for row in rng.sample(range(len(pair.rows)), rng.randrange(1, len(pair.rows) + 1)):
                    ids = some_ids(rng.choice([1, 1, 2, 5, 16, 16, 19]), rng.randrange(99))
                    tree = random_tree(rng, rng.randrange(len(ids)))
                    parts.append((row, ids, rng.randrange(len(ids) + 1), tree if rng.random() < 0.2 else ()))
                pair.forward(parts, rng.choice([(), (), (FINAL,), (1, 0, FINAL)]))
    assert pair.graph.pool.generation > 1  # lanes and their length have grown on the way


@torch.inference_mode()
def test_every_batch_and_length_up_to_sixteen_has_a_shape_and_the_right_logits() -> None:
    pair = Pair("qwen3", attention=SPLIT, lanes=16)
    for _ in range(17):
        pair.add(1)
    for batch in (*range(1, 18, 3), 16, 17):
        for longest in (1, 2, 3, 8, 9, 16, 17):
            pair.forward([(row, some_ids(max(1, longest - row), row), 0, ()) for row in range(batch)])
    used = {(key.batch, key.q_len) for key in pair.graph.shapes}
    assert used == {(batch, q_len) for batch in (1, 4, 8, 16) for q_len in (1, 2, 4, 8, 16)}


@torch.inference_mode()
def test_shapes_of_as_many_tokens_do_not_share_a_graph() -> None:
    """The graph's key holds q_len: two rows of four tokens are not four rows of two."""
    shapes = [(1, 8), (2, 4), (4, 2), (8, 1)]
    pair = Pair("qwen3", lanes=8)
    for row in range(8):
        pair.add(1)
        pair.forward([(row, some_ids(20 + 3 * row, row), 0, ())])
    for _ in range(3):
        for batch, q_len in shapes:
            pair.forward([(row, some_ids(q_len, row), 0, ()) for row in range(batch)])
    assert [(key.batch, key.q_len) for key in pair.graph.shapes] == shapes
    assert pair.graph.captures == len(shapes)


@torch.inference_mode()
def test_sharing_a_graph_over_lengths_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above relies on: with a key that holds only the number of tokens, replays are wrong."""
    pair = Pair("qwen3", lanes=8)
    for row in range(4):
        pair.add(1)
        pair.forward([(row, some_ids(20 + 3 * row, row), 0, ())])
    monkeypatch.setattr(GraphKey, "__eq__", lambda self, other: self.tokens == other.tokens)
    monkeypatch.setattr(GraphKey, "__hash__", lambda self: self.tokens)
    pair.forward([(row, some_ids(2, row), 0, ()) for row in range(4)])
    with pytest.raises(AssertionError):
        pair.forward([(row, some_ids(4, row), 0, ()) for row in range(2)])


@torch.inference_mode()
def test_a_replay_takes_everything_from_its_table() -> None:
    pair = Pair("qwen3", attention=SPLIT)
    rows = [pair.add(1) for _ in range(3)]
    for row in rows:
        pair.forward([(row, some_ids(30 + 5 * row, row), 0, ())])
    pair.forward([(0, some_ids(5), 0, ()), (1, some_ids(8), 0, ()), (2, some_ids(2), 0, ())])
    captures = pair.graph.captures
    # Other tokens, lengths, trees, positions and rows; the shape is the same.
    pair.forward([(2, some_ids(7, 7), 2, (-1, 0, -1)), (0, some_ids(6, 8), 6, ()), (1, some_ids(1, 9), 0, ())])
    pair.graph.crop(pair.rows[0][1], 3)
    pair.lean.crop(pair.rows[0][0], 3)
    pair.forward(
        [(0, some_ids(8, 5), 0, (-1, -1, -1, 0, 1, 2)), (2, some_ids(6, 4), 5, ()), (1, some_ids(3, 3), 0, ())]
    )
    assert pair.graph.captures == captures


@torch.inference_mode()
def test_filling_a_shape_writes_to_nobodys_cache(qwen3: Any) -> None:
    executor = GraphExecutor(qwen3, lanes=8, capacity=64)
    caches = filled(executor, [10, 20, 30, 40, 25])
    executor.forward([Block(cache, [1], 0) for cache in caches])
    assert [cache.lane for cache in caches] == [0, 1, 2, 3, 4]
    executor.forward([Block(caches[4], [2, 3], 0)])
    before = executor.pool.view.clone()
    lengths = [cache.length for cache in caches]
    # Rows 0, 1, 3 of four lanes: lane 2 takes part in the shape, its row doesn't. Lengths are filled up to 8.
    executor.forward([Block(caches[row], some_ids(count), 0) for row, count in ((0, 5), (1, 1), (3, 2))])
    changed = (executor.pool.view != before).any(-1).any(3).any(1).any(0)  # [lanes, capacity]
    expected = torch.zeros(8, 64, dtype=torch.bool)
    for row, count in ((0, 5), (1, 1), (3, 2)):
        expected[row, lengths[row] : lengths[row] + count] = True
    assert torch.equal(changed, expected)


@torch.inference_mode()
def test_a_row_does_not_inherit_what_a_broken_row_left_in_its_lane(qwen3: Any) -> None:
    executor = GraphExecutor(qwen3, lanes=1, capacity=64)
    (broken,) = filled(executor, [20])
    executor.forward([Block(broken, [1], 0)])
    broken.buffer.fill_(float("nan"))
    del broken
    assert executor.pool.occupant(0) is None
    fresh = executor.new_cache(8)
    assert fresh.lane == 0  # type: ignore[attr-defined]
    assert executor.forward([Block(fresh, [1, 2, 3], 0)]).isfinite().all()


@torch.inference_mode()
def test_picks_are_the_highest_logits_and_their_log_probabilities(qwen3: Any) -> None:
    executor = GraphExecutor(qwen3)
    caches = filled(executor, [12, 7])
    logits = executor.forward([Block(caches[0], [4, 5, 6], 1), Block(caches[1], [9], 0)])
    picks = executor.picks
    assert picks is not None
    executor.forward([Block(caches[0], [1, 1, 1], 0), Block(caches[1], [1], 0)])
    ids, logprobs = picks.read()  # what a later forward writes doesn't change them
    assert ids == logits.argmax(-1).tolist()
    assert logprobs == pytest.approx(logits.log_softmax(-1).amax(-1).tolist(), abs=1e-5)
    executor.forward([Block(caches[0], some_ids(20), 0)])
    assert executor.picks is None  # not a shape of its own


@torch.inference_mode()
def test_logits_outlive_the_next_forward(qwen3: Any) -> None:
    executor = GraphExecutor(qwen3)
    caches = filled(executor, [12, 7])
    logits, taps = executor.forward_tapped([Block(caches[0], [4, 5], 0)], (FINAL,))
    then = logits.clone(), taps[0].clone()
    executor.forward_tapped([Block(caches[1], [8, 9], 0)], (FINAL,))
    assert torch.equal(logits, then[0]) and torch.equal(taps[0], then[1])


@torch.inference_mode()
def test_a_subset_of_layers_is_a_shape_of_its_own() -> None:
    pair = Pair("qwen3")
    pair.add(1)
    pair.forward([(0, some_ids(20), 0, ())])
    lean, graph = pair.rows[0]
    for layers in ([1], [0], [0, 1], [1]):
        block = [5, 6]
        expected, _ = pair.lean.run([Block(lean, block, 0)], layers, ())
        ours, _ = pair.graph.run([Block(graph, block, 0)], layers, ())
        assert_equal(ours, expected)
        pair.lean.crop(lean, 20)
        pair.graph.crop(graph, 20)
    assert pair.graph.captures == 3


@torch.inference_mode()
def test_rows_beyond_the_lanes_limit_run_without_a_graph() -> None:
    pair = Pair("qwen3", lanes=2, capacity=16, pool_bytes=2 * 2 * 2 * 2 * 32 * 4 * 40)  # two lanes of 32 and a bit
    for row in range(3):
        pair.add(1)
        for start in (0, 16, 32):
            pair.forward([(row, some_ids(16, start + row), 0, ())])
    for _ in range(2):
        pair.forward([(row, some_ids(2, row), 0, ()) for row in range(3)])
    assert pair.graph.pool.nbytes <= pair.graph.pool.limit_bytes
    assert pair.graph.picks is None


@torch.inference_mode()
def test_a_shape_that_cannot_be_captured_runs_uncaptured_with_one_warning(
    qwen3: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    executor = TapedExecutor(qwen3)
    (cache,) = filled(executor, [20])
    executor.forward([Block(cache, [1], 0)])

    def refuse(graph: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(executor, "_capture", refuse)
    with caplog.at_level(logging.WARNING):
        logits = [executor.forward([Block(cache, some_ids(count), 0)]) for count in (3, 7, 1)]
    assert [record.message.split(" (")[0] for record in caplog.records] == ["CUDA graphs can't be captured any more"]
    lean = LeanExecutor(build(CONFIGS["qwen3"]()))
    (other,) = filled(lean, [20])
    lean.forward([Block(other, [1], 0)])
    for count, ours in zip((3, 7, 1), logits, strict=True):
        assert_equal(ours, lean.forward([Block(other, some_ids(count), 0)]))


def test_on_a_gpu_graphs_are_chosen_and_the_lean_executor_where_they_fail(
    qwen3: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with torch.no_grad():
        assert type(choose_executor(qwen3, "auto")) is LeanExecutor
        assert type(choose_executor(qwen3, "graph")) is GraphExecutor
        monkeypatch.setattr(type(qwen3), "device", property(lambda self: torch.device("cuda")))
        assert type(choose_executor(qwen3, "auto")) is GraphExecutor
        assert type(choose_executor(qwen3, "lean")) is LeanExecutor

        def fail(*_: Any, **__: Any) -> None:
            raise ModelUnsupported("Forwards of this model can't be captured.")

        monkeypatch.setattr(GraphExecutor, "__init__", fail)
        with caplog.at_level(logging.WARNING):
            assert type(choose_executor(qwen3, "auto")) is LeanExecutor
        assert "without CUDA graphs" in caplog.text
        with pytest.raises(ModelUnsupported):
            choose_executor(qwen3, "graph")
    with pytest.raises(ModelUnsupported, match="graph executor"), torch.no_grad():
        choose_executor(build(CONFIGS["gemma3"]()), "graph")


@torch.inference_mode()
def test_the_trial_compares_with_the_lean_executor_and_sees_a_fault(qwen3: Any) -> None:
    executor = GraphExecutor(qwen3)
    assert executor.difference_from_lean() < 1e-6
    compute = executor._compute

    def late(graph: Any) -> None:
        graph.inputs[1] += 1  # positions off by one
        compute(graph)

    executor._compute = late  # type: ignore[method-assign]
    assert executor.difference_from_lean() > 1e-3


@torch.inference_mode()
def test_bf16_stays_near_the_lean_executor() -> None:
    model = build(CONFIGS["qwen3"]()).to(torch.bfloat16)
    for attention in (PLAIN, SPLIT):
        assert GraphExecutor(model, attention=attention).difference_from_lean() < 0.05


@torch.inference_mode()
def test_fused_pieces_compute_what_they_stand_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling needs a compiler; what is compiled is tried out as it is."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    pieces = compiled(1e-6)
    x, weight = torch.randn(3, 6, 16), torch.randn(6, 16)
    normed = torch.nn.functional.rms_norm(x, (16,), None, 1e-6) * weight
    assert torch.allclose(pieces.norm(x, weight), normed, atol=1e-6)
    cos, sin = torch.randn(3, 1, 16), torch.randn(3, 1, 16)
    for w in (None, weight):
        states = x.clone()
        pieces.rotate(states, w, cos, sin)
        base = x if w is None else normed
        assert torch.allclose(states, base * cos + torch.roll(base, 8, -1) * sin, atol=1e-6)
    y = torch.randn(3, 8)
    first, second = y.chunk(2, -1)
    assert torch.allclose(pieces.gate(y), torch.nn.functional.silu(first) * second)


# -- shapes ---------------------------------------------------------------------------------------------------------

counts = st.integers(1, 16)


@given(st.lists(counts, min_size=1, max_size=16))
def test_a_shape_holds_its_blocks_and_is_the_smallest_that_does(lengths: list[int]) -> None:
    blocks = [Block(StaticCache(torch.empty(1, 2, 1, 1, 1), 1), [0] * length, 0) for length in lengths]
    assert graph_shapes.fits(blocks)
    batch, q_len = graph_shapes.shapes_of(blocks)
    assert batch in BATCHES and q_len in QUERY_LENGTHS
    assert len(blocks) <= batch < 2 * len(blocks) and max(lengths) <= q_len < 2 * max(lengths)


@given(st.lists(st.integers(1, 40), max_size=50))
def test_every_block_is_in_one_group_and_short_ones_in_groups_that_fit(lengths: list[int]) -> None:
    blocks = [Block(StaticCache(torch.empty(1, 2, 1, 1, 1), 1), [0] * length, 0) for length in lengths]
    groups = graph_shapes.groups_of(blocks)
    assert sorted(index for group in groups for index in group) == list(range(len(blocks)))
    for group in groups:
        chosen = [blocks[index] for index in group]
        assert graph_shapes.fits(chosen) or all(len(block.tokens) > 16 for block in chosen)


@given(st.integers(1, 1 << 20), st.integers(0, 10))
def test_what_attention_reads_holds_the_row_and_at_most_half_as_much_again(length: int, doublings: int) -> None:
    capacity = 1024 << doublings
    if length > capacity:
        return
    seen = graph_shapes.seen_bucket(length, capacity)
    assert length <= seen <= max(256, length * 3 // 2) and seen <= capacity
    chunks = SplitAttention().chunks(8, seen)
    assert seen % chunks == 0 and (seen // chunks) % 8 == 0


@given(st.data())
@settings(max_examples=60)
def test_the_table_says_what_each_token_sees_and_where_it_goes(data: st.DataObject) -> None:
    pool = LanePool(1, 2, 4, dtype=torch.float32, device=torch.device("cpu"), limit_bytes=1 << 24, capacity=64)
    rows = data.draw(st.integers(1, 8))
    caches = [StaticCache(torch.empty(1, 2, 2, 64, 4), 1) for _ in range(rows)]
    blocks = []
    for cache in caches:
        cache.length = data.draw(st.integers(0, 40))
        count = data.draw(counts)
        tree = [data.draw(st.integers(-1, index - 1)) for index in range(data.draw(st.integers(0, count - 1)))]
        blocks.append(Block(cache, list(range(1, count + 1)), data.draw(st.integers(0, count)), tree))
    batch, q_len = graph_shapes.shapes_of(blocks)
    first = pool.seat(caches, batch, 64)
    assert first is not None
    key = GraphKey(batch, q_len, 64, first)
    table = graph_shapes.lay_out(data.draw(st.permutations(blocks)), key, pool.slot)
    assert all(len(column) == batch * q_len for column in table.rows())
    real = set()
    for block in blocks:
        cache: Any = block.cache
        trunk = len(block.tokens) - len(block.tree)
        sees = torch.ones(len(block.tokens), len(block.tokens), dtype=torch.bool).tril()
        sees[trunk:, trunk:] = ancestors(block.tree)
        depth = [*range(trunk), *(trunk - 1 + depth for depth in depths(block.tree))]
        for index, token in enumerate(block.tokens):
            at = (cache.lane - first) * q_len + index
            real.add(at)
            assert (table.ids[at], table.before[at]) == (token, cache.length)
            assert table.slots[at] == pool.slot(cache.lane, cache.length + index)
            assert table.positions[at] == cache.length + depth[index]
            assert [bool(table.sees[at] >> other & 1) for other in range(len(block.tokens))] == sees[index].tolist()
            assert (at in table.wanted) == (index >= block.logits_from)
    for at in set(range(batch * q_len)) - real:
        assert table.slots[at] == NOWHERE and table.sees[at] and at not in table.wanted
    assert len(set(table.slots)) == len(real) + (len(real) < batch * q_len)


@given(st.data())
@settings(max_examples=60)
def test_lanes_keep_every_row_whole_whoever_is_seated(data: st.DataObject) -> None:
    limit = data.draw(st.sampled_from([1 << 14, 1 << 24]))
    pool = LanePool(
        1, 2, 4, dtype=torch.float32, device=torch.device("cpu"), limit_bytes=limit, lanes=1, capacity=8
    )  # fmt: skip
    rows: list[StaticCache] = []
    held: list[torch.Tensor] = []
    for _ in range(data.draw(st.integers(1, 12))):
        if len(rows) < 12 and data.draw(st.booleans()):
            cache = StaticCache(torch.empty(1, 2, 2, 8, 4), 8)
            pool.place(cache)
            cache.length = data.draw(st.integers(1, 8))
            filling = torch.randn(1, 2, 2, cache.length, 4)
            cache.buffer[:, :, :, : cache.length] = filling
            rows.append(cache)
            held.append(filling)
        if rows and data.draw(st.booleans()):
            index = data.draw(st.integers(0, len(rows) - 1))
            rows[index].reserve(data.draw(st.integers(1, 40)))
        if len(rows) > 1 and data.draw(st.booleans()):
            del rows[0], held[0]
        if rows:
            chosen = data.draw(st.lists(st.sampled_from(range(len(rows))), min_size=1, max_size=8, unique=True))
            batch = graph_shapes.bucket(len(chosen), BATCHES)
            assert batch is not None
            caches = [rows[index] for index in chosen]
            first = pool.seat(caches, batch, max(cache.length for cache in caches))
            assert pool.nbytes <= limit
            if first is None:
                assert limit == 1 << 14
            else:
                assert first % batch == 0 and first + batch <= pool.lanes
                lanes = [cache.lane for cache in caches]
                assert len(set(lanes)) == len(lanes) and all(lane in range(first, first + batch) for lane in lanes)
        for cache, filling in zip(rows, held, strict=True):
            assert torch.equal(cache.buffer[:, :, :, : cache.length], filling)
            if cache.lane is not None:
                assert pool.occupant(cache.lane) is cache
                assert torch.equal(pool.view[:, :, cache.lane, :, : cache.length], filling)
                assert not pool.view[:, :, cache.lane].isnan().any()


def test_a_row_that_decodes_is_not_unseated_where_the_lanes_can_grow() -> None:
    pool = LanePool(1, 1, 4, dtype=torch.float32, device=torch.device("cpu"), limit_bytes=1 << 20, lanes=2, capacity=8)
    a, b, c = (StaticCache(torch.empty(1, 2, 1, 8, 4), 8) for _ in range(3))
    pool.seat([a], 1, 8)
    pool.seat([b], 1, 8)
    pool.seat([c], 1, 8)
    assert pool.lanes == 4 and [a.lane, b.lane, c.lane] == [0, 1, 2]
    for _ in range(40):
        pool.seat([b, c], 2, 8)
    # The agent's row has rested meanwhile: it moves, the pair stays together.
    assert pool.lanes == 4 and {b.lane, c.lane} in ({0, 1}, {2, 3})
