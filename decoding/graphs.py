"""Decoding on a GPU without launching: a step is one copy to the device, the replay of a captured graph, one copy back.

A step of a few tokens launches several hundred kernels, and issuing them takes longer than running them. A CUDA graph
issues them all at once, but only ever the same ones on the same addresses. So forwards run in a few shapes
(`graph_shapes`), each captured when it first occurs, on keys and values that don't move (`static_cache`). Longer blocks
(prompts) run as `LeanExecutor` runs them, on the same caches.

Without capturing (`capture=False`) the same static function is simply called: slower, on any device, equal.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from .errors import ModelUnsupported
from .executor import FINAL, Block, ExecutorKind, RowCache
from .fused import Pieces, compiled, gate, pays
from .graph_shapes import FIELDS, GraphKey, fits, groups_of, lay_out, seen_bucket, shapes_of
from .lean import LeanExecutor
from .picks import Picks
from .sampling import score
from .static_attention import PLAIN, Attention, SplitAttention
from .static_cache import FIRST_CAPACITY, FIRST_LANES, LanePool, StaticCache

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_log = logging.getLogger(__name__)

MOST_GRAPHS = 160
"""Captured forwards kept; each holds some megabytes. The longest unused goes first."""
POOL_SHARE = 4
"""The lanes may take this part of the memory that is free at the start: a quarter."""
POOL_BYTES = 1 << 30
"""The same where there is no such memory to ask about."""
TRIAL_TOLERANCE = 2e-3
"""Accepted difference from the lean executor, relative to the logits, in fp32."""
LOW_PRECISION_TOLERANCE = 0.1


@dataclass(slots=True)
class _Graph:
    """One shape's forward and what it reads and writes; the tensors stay where they are as long as it lives."""

    key: GraphKey
    inputs: Tensor
    """int64 [FIELDS, tokens], see `graph_shapes.Table`."""
    cos: Tensor
    sin: Tensor
    logits: Tensor
    """fp32 [tokens, vocab]."""
    picks: Tensor
    """fp64 [2, tokens]: the id of the highest logit, and its log-probability."""
    taps: list[Tensor]
    """Each [tokens, width]."""
    replay: Callable[[], object] | None = None
    """Issues the captured kernels; None where they weren't captured."""


class GraphExecutor(LeanExecutor):
    """The `Executor` of the lean one's models on CUDA devices.

    Beside what the protocol asks for, `picks` holds the last forward's greedy choices, on their way to the host.
    """

    name: ExecutorKind = "graph"

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        capture: bool | None = None,
        fuse: bool | None = None,
        attention: Attention | None = None,
        lanes: int = FIRST_LANES,
        capacity: int = FIRST_CAPACITY,
        pool_bytes: int | None = None,
    ) -> None:
        """Take over the model's weights as `LeanExecutor` does; where graphs are captured, try some and compare.

        Args:
            model: what `why_not_lean` has nothing against.
            capture: replay captured graphs; None = on CUDA devices.
            fuse: compile what lies between matrix products (see `fused`); None = where that pays.
            attention: how rows attend; None takes chunks, or one pass where those don't work.
            lanes: rows for which the static cache has room at first.
            capacity: tokens per row in it at first.
            pool_bytes: what it may grow to; rows beyond that run as in the lean executor. None = a quarter of the free
                memory.

        Raises:
            ModelUnsupported: graphs can't be captured on this device, or compute something else.
        """
        super().__init__(model)
        self.one_row, self.singles = None, 1  # blocks of fixed shapes are what this is about
        self.picks: Picks | None = None
        self._captures = self.device.type == "cuda" if capture is None else capture
        self._failure: Exception | None = None
        weights = sum(product.weight.nbytes for product in self._products)
        fuse = pays(weights, self.device) if fuse is None else fuse
        self._fused = compiled(self.eps) if fuse else None
        self._attention = attention or SplitAttention()
        self._graphs: OrderedDict[GraphKey, _Graph] = OrderedDict()
        self._inputs: dict[int, Tensor] = {}
        self._logits = torch.empty(0, self.vocab_size, device=self.device)
        self._generation = 0
        if pool_bytes is None:
            cuda = self.device.type == "cuda"
            pool_bytes = torch.cuda.mem_get_info(self.device)[0] // POOL_SHARE if cuda else POOL_BYTES
        self.pool = LanePool(
            len(self.layers),
            self.kv_heads,
            self.head_dim,
            dtype=self.dtype,
            device=self.device,
            limit_bytes=pool_bytes,
            lanes=lanes,
            capacity=capacity,
        )
        self._all_layers = tuple(range(len(self.layers)))
        if self._captures:
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            self._memory = torch.cuda.graph_pool_handle()
            self._try_out(fixed=attention is not None)

    @property
    def shapes(self) -> tuple[GraphKey, ...]:
        """The shapes that have a forward, the longest unused first."""
        return tuple(self._graphs)

    # -- caches -------------------------------------------------------------------------------------------------

    def new_cache(self, tokens: int) -> RowCache:
        """Return an empty cache with room for `tokens` tokens, in a free lane if there is one."""
        cache = StaticCache(self._buffer(1), max(tokens, 1))
        self.pool.place(cache)
        if cache.lane is None:
            cache.buffer = self._buffer(tokens)
        return cache

    def fork(self, cache: RowCache, length: int, tokens: int) -> tuple[RowCache, int]:
        """Copy a prefix; the source is only read."""
        prefix = cast("StaticCache", cache).buffer[:, :, :, :length]
        copy = cast("StaticCache", self.new_cache(max(length, tokens)))
        copy.buffer[:, :, :, :length] = prefix
        copy.length = length
        return copy, prefix.numel() * prefix.element_size()

    # -- forward ------------------------------------------------------------------------------------------------

    def partition(self, blocks: Sequence[Block]) -> list[list[int]]:
        """Blocks of a few tokens share captured forwards; longer ones share one of their own."""
        return groups_of(blocks)

    def run(self, blocks: Sequence[Block], layers: Sequence[int], taps: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        """Replay the forward of the blocks' shape; what has none runs as in the lean executor."""
        self.picks = None
        if not fits(blocks):
            return super().run(blocks, layers, taps)
        caches = [cast("StaticCache", block.cache) for block in blocks]
        batch, q_len = shapes_of(blocks)
        longest = max(cache.length + len(block.tokens) for cache, block in zip(caches, blocks, strict=True))
        first = self.pool.seat(caches, batch, longest)
        if self._generation != self.pool.generation:
            self._start_over()
        if first is None:
            return super().run(blocks, layers, taps)
        key = GraphKey(batch, q_len, seen_bucket(longest, self.pool.capacity), first, tuple(layers), tuple(taps))
        table = lay_out(blocks, key, self.pool.slot)
        graph = self._fed(key, table.rows())
        if graph.replay is not None:
            graph.replay()
        else:
            self._compute(graph)
        for cache, block in zip(caches, blocks, strict=True):
            cache.length += len(block.tokens)
            cache.room = max(cache.room, cache.length)
        self.picks = Picks(graph.picks, table.wanted)
        # Copies: the next forward overwrites what this one wrote.
        wanted = graph.inputs[FIELDS - 1, : len(table.wanted)]
        return graph.logits.index_select(0, wanted), [states.index_select(0, wanted) for states in graph.taps]

    def _fed(self, key: GraphKey, rows: list[list[int]]) -> _Graph:
        """Return the forward of a shape, its inputs filled."""
        # Pinned memory comes from torch's cache, which hands it out again only after the copy has been made.
        host = torch.tensor(rows, dtype=torch.int64, pin_memory=self.device.type == "cuda")
        inputs = self._inputs.get(key.tokens)
        if inputs is None:
            inputs = self._inputs[key.tokens] = torch.empty_like(host, device=self.device)
        inputs.copy_(host, non_blocking=True)
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = self._record(key, inputs)
            if len(self._graphs) > MOST_GRAPHS:
                self._graphs.popitem(last=False)
        else:
            self._graphs.move_to_end(key)
        return graph

    # -- capturing ----------------------------------------------------------------------------------------------

    def _record(self, key: GraphKey, inputs: Tensor) -> _Graph:
        """Make the forward of a shape, captured if possible; its inputs hold what is about to be run."""
        self._fill_rotation(self.pool.capacity)
        count = key.tokens
        if self._logits.shape[0] < count:
            self._logits = torch.empty(count, self.vocab_size, device=self.device)
        graph = _Graph(
            key,
            inputs,
            self._cos,
            self._sin,
            self._logits[:count],
            torch.empty(2, count, dtype=torch.float64, device=self.device),
            [torch.empty(count, self.width, dtype=self.dtype, device=self.device) for _ in key.taps],
        )
        if self._captures:
            try:
                graph.replay = self._capture(graph)
            except Exception as error:  # whatever it was, the same function runs without being captured
                self._captures = False
                self._failure = error
                _log.warning(
                    "CUDA graphs can't be captured any more (%s: %s); new shapes of forwards run without them, slower",
                    type(error).__name__,
                    error,
                )
        return graph

    def _capture(self, graph: _Graph) -> Callable[[], object]:
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        captured = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(self._stream):
                self._compute(graph)  # libraries start, pieces compile; writing keys and values twice does no harm
            current.wait_stream(self._stream)
            # Other threads may use the device meanwhile: another worker, or the user's own.
            with torch.cuda.graph(captured, self._memory, self._stream, capture_error_mode="thread_local"):
                self._compute(graph)
        finally:
            torch.cuda.set_stream(current)  # a capture that failed doesn't leave its stream
        return captured.replay

    def _start_over(self) -> None:
        """Forget every forward: the lanes have moved."""
        self._generation = self.pool.generation
        if self._captures and self._graphs:
            torch.cuda.synchronize(self.device)
            self._memory = torch.cuda.graph_pool_handle()
        self._graphs.clear()

    # -- the forward of a shape ---------------------------------------------------------------------------------

    def _compute(self, graph: _Graph) -> None:
        """Run a shape's forward on its static tensors; nothing in here may depend on what they hold."""
        key, pool, attend = graph.key, self.pool, self._attention
        pieces = self._fused or Pieces(self._norm, self._rotate, gate)
        batch, q_len, heads, kv_heads, size = key.batch, key.q_len, self.heads, self.kv_heads, self.head_dim
        group = heads // kv_heads
        ids, positions, slots, before, sees, _ = graph.inputs.unbind(0)  # each [T], T = batch * q_len
        x = self.embedding.index_select(0, ids)
        cos, sin = graph.cos.index_select(0, positions), graph.sin.index_select(0, positions)
        slots = slots[:, None]
        store = torch.where(slots >= 0, slots + pool.offsets, pool.nowhere)  # [T, 2 kv_heads]
        visible = _visible(before, sees, key.seen).view(batch, 1, q_len, key.seen)
        visible = visible.expand(-1, group, -1, -1).reshape(batch, group * q_len, key.seen)
        mask = attend.mask(visible, self.dtype, kv_heads)
        lanes = pool.view[:, :, key.first : key.first + batch, :, : key.seen]
        for index in key.layers:
            layer = self.layers[index]
            if index in key.taps:
                graph.taps[key.taps.index(index)].copy_(x)
            states = layer.qkv(pieces.norm(x, layer.input_norm)).view(-1, heads + 2 * kv_heads, size)
            pieces.rotate(states[:, : heads + kv_heads], layer.qk_norm, cos, sin)
            pool.flat[index].index_put_((store,), states[:, heads:])
            # [B, q_len, kv_heads, group, size] -> queries of one key/value head side by side
            q = states[:, :heads].view(batch, q_len, kv_heads, group, size).permute(0, 2, 3, 1, 4)
            q = q.reshape(batch, kv_heads, group * q_len, size)
            attended = attend(q, lanes[index, 0], lanes[index, 1], mask, self.scale)
            attended = attended.view(batch, kv_heads, group, q_len, size).permute(0, 3, 1, 2, 4)
            x = layer.output.add_to(x, attended.reshape(-1, heads * size))
            x = layer.down.add_to(x, pieces.gate(layer.gate_up(pieces.norm(x, layer.mlp_norm))))
        x = pieces.norm(x, self.final_norm)
        if FINAL in key.taps:
            graph.taps[key.taps.index(FINAL)].copy_(x)
        graph.logits.copy_(self.head(x))
        chosen = graph.logits.argmax(-1)
        graph.picks[0].copy_(chosen)
        graph.picks[1].copy_(score(graph.logits, chosen))

    # -- the trial ----------------------------------------------------------------------------------------------

    def _try_out(self, *, fixed: bool) -> None:
        """Capture a few shapes and compare; fall back to plain attention, then give up."""
        for attention in (self._attention,) if fixed else (self._attention, PLAIN):
            self._attention = attention
            try:
                difference = self.difference_from_lean()
            except Exception as error:  # an operator that this build or device lacks
                self._failure = error
            else:
                low = self.dtype != torch.float32
                if self._failure is None and difference <= (LOW_PRECISION_TOLERANCE if low else TRIAL_TOLERANCE):
                    return
                self._failure = self._failure or ArithmeticError(f"logits differ by {difference:.1e} of their size")
            _log.info("graphs with %s don't work here: %s", type(attention).__name__, self._failure)
            failure, self._failure, self._captures = self._failure, None, True
            self._start_over()
        raise ModelUnsupported(
            f"Forwards of this model can't be captured as CUDA graphs on {self.device}: {failure}. Use executor='lean'."
        ) from failure

    @torch.inference_mode()
    def difference_from_lean(self) -> float:
        """Return the relative difference between the logits of static forwards and the lean executor's.

        Two rows, one of them with a tree, together and alone, behind a context of several chunks.
        """
        ids = [(7 * index + 3) % self.vocab_size for index in range(self.pool.first_capacity // 2)]
        ours: list[Tensor] = []
        lean: list[Tensor] = []
        caches = [self.new_cache(len(ids) + 32) for _ in range(4)]
        for cache, length in zip(caches, (len(ids), len(ids) // 3) * 2, strict=True):
            super().run([Block(cache, ids[:length], length)], self._all_layers, ())
        steps: tuple[tuple[tuple[int, int, tuple[int, ...]], ...], ...] = (
            ((0, 1, ()), (1, 1, ())),
            ((0, 4, (-1, 0, -1)), (1, 2, ())),
            ((1, 7, ()),),
            ((1, 1, ()),),  # compiled pieces have a variant of their own for single tokens
        )
        for step in steps:
            for found, run, offset in ((ours, self.run, 0), (lean, super().run, 2)):
                blocks = [Block(caches[row + offset], ids[:count], 0, tree) for row, count, tree in step]
                found.append(run(blocks, self._all_layers, ())[0])
        expected = torch.cat(lean)
        return float((torch.cat(ours) - expected).norm() / expected.norm())


def _visible(before: Tensor, sees: Tensor, seen: int) -> Tensor:
    """Return which positions every token sees: bool [T, seen], from the table's columns."""
    offset = torch.arange(seen, device=before.device) - before[:, None]
    in_block = (sees[:, None] >> offset.clamp(0, 62)) & 1
    return (offset < 0) | ((offset < 62) & (in_block > 0))
