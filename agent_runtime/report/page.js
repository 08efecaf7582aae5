// The timeline: draws what lies in the window [view.from, view.to] of the run, in seconds, and moves the window.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("timeline-data").textContent);
  const chart = document.getElementById("chart");
  const overview = document.getElementById("overview");
  const details = document.getElementById("details");
  const where = document.getElementById("where");

  const LANES = [["model", "Model"], ["guesses", "Guesses"], ["tools", "Tools"], ["probes", "Probes"]];
  const PALE = new Set(["prefill", "thinking"]);
  const NAMES = {
    prefill: "Reading the prompt", thinking: "Thinking", writing: "Writing", demand: "The model asks",
    served: "Guess that served", missed: "Guess that ran in vain", unused: "Guess that never ran",
    tool: "Tool, on demand", early_used: "Tool, early and used", early_wasted: "Tool, early in vain",
    failed: "Failed", probe: "Probe",
  };
  const AXIS = 20, TURNS = 20, ROW = 22, STEP = 26, GAP = 20, NARROW = 640, GUTTER = 78, CHARACTER = 6.3;
  const SHORTEST = 2;   // pixels of a span that took hardly any time
  const MARK = 5;       // half the size of the mark of what took no time at all
  const CROWDED = 24;   // pixels of a turn below which marks and arrows shrink

  const length = Math.max(data.seconds, 1e-6);
  const margin = length * 0.01;
  const whole = { from: -margin, to: length + margin };
  const closest = Math.min(length, Math.max(length / 1e5, 1e-4));
  const view = { ...whole };
  const inOrder = data.spans.map((_, index) => index)
    .sort((a, b) => data.spans[a].start - data.spans[b].start || a - b);
  const byLane = LANES.map(([lane]) => inOrder.filter((index) => data.spans[index].lane === lane));

  let picked = -1, hovered = -1, waiting = false;
  let width = 0, gutter = 0, tops = {}, height = 0, size = MARK;
  let handle = null;

  // --- drawing ---------------------------------------------------------------------------------------------------

  function element(name, attributes, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  const x = (seconds) => gutter + (seconds - view.from) / (view.to - view.from) * (width - gutter);
  const secondsAt = (pixels) => view.from + (pixels - gutter) / (width - gutter) * (view.to - view.from);

  function layout() {
    width = chart.clientWidth;
    gutter = width < NARROW ? 0 : GUTTER;
    let top = AXIS + TURNS + 6;
    for (const [lane] of LANES) {
      if (!gutter) top += 16;
      tops[lane] = top;
      top += data.rows[lane] * STEP + GAP - 4;
    }
    height = top - GAP + 10;
    const turn = length / Math.max(1, data.bands.length) / (view.to - view.from) * (width - gutter);
    size = turn < CROWDED ? MARK / 2 : MARK;
  }

  function draw() {
    waiting = false;
    if (!chart.clientWidth) return;
    layout();
    const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true", focusable: "false" });
    svg.append(definitions(), ...bands(), ...ticks(), ...turns());
    const clipped = element("g", { "clip-path": "url(#plot)" });
    LANES.forEach(([lane], number) => clipped.append(...spans(lane, byLane[number])));
    clipped.append(...arrows());
    svg.append(clipped, ...titles());
    chart.replaceChildren(svg);
    moveHandle();
    where.textContent = place();
  }

  function soon() {
    if (!waiting) {
      waiting = true;
      requestAnimationFrame(draw);
    }
  }

  function definitions() {
    const defs = element("defs", {});
    const clip = element("clipPath", { id: "plot" });
    clip.append(element("rect", { x: gutter, y: 0, width: Math.max(0, width - gutter), height }));
    const hatch = element("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
    hatch.append(element("rect", { width: 6, height: 6 }), element("path", { d: "M0 0V6" }));
    const head = element("marker", { id: "head", viewBox: "0 0 8 8", refX: 4, refY: 7, markerWidth: 1.6 * size, markerHeight: 1.6 * size, markerUnits: "userSpaceOnUse" });
    head.append(element("path", { class: "head", d: "M0 0L4 8L8 0z", transform: "rotate(180 4 4)" }));
    defs.append(clip, hatch, head);
    return defs;
  }

  function* bandsInView() {
    for (const [index, band] of data.bands.entries()) {
      const left = Math.max(gutter, x(band.start)), right = Math.min(width, x(band.end));
      if (right - left >= 0.5) yield { index, band, left, right };
    }
  }

  function bands() {
    return [...bandsInView()].filter(({ index }) => index % 2 === 0)
      .map(({ left, right }) => element("rect", { class: "band", x: left, y: AXIS, width: right - left, height: height - AXIS }));
  }

  function turns() {
    const made = [];
    let free = gutter;
    for (const { index, band, left, right } of bandsInView()) {
      const label = right - left > 52 ? `turn ${band.turn + 1}` : `${band.turn + 1}`;
      const room = label.length * CHARACTER + 8;
      if (right - left >= room * 0.8 && left >= free) {
        made.push(element("text", { class: "turn", x: left + 4, y: AXIS + 14, "data-band": index }, label));
        free = left + room;
      }
    }
    return made;
  }

  function ticks() {
    const made = [], aim = (view.to - view.from) / Math.max(2, (width - gutter) / 90);
    const power = 10 ** Math.floor(Math.log10(aim));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= aim);
    for (let number = Math.max(0, Math.ceil(view.from / step)); number * step <= view.to; number++) {
      const at = x(number * step);
      if (at < gutter) continue;
      made.push(element("path", { class: "tick", d: `M${at} ${AXIS - 4}V${height}` }));
      const text = element("text", { x: at, y: 12, "text-anchor": at - gutter < 20 ? "start" : at > width - 30 ? "end" : "middle" }, time(number * step, step));
      made.push(text);
    }
    return made;
  }

  function time(seconds, step) {
    if (seconds === 0) return "0";
    if (step < 1 && view.to < 2) return `${(seconds * 1000).toFixed(step < 0.001 ? Math.min(3, Math.ceil(-Math.log10(step * 1000))) : 0)} ms`;
    return `${seconds.toFixed(step < 1 ? Math.min(6, Math.ceil(-Math.log10(step) - 1e-9)) : 0)} s`;
  }

  function titles() {
    return LANES.map(([lane, name]) => element("text", { class: "lane", x: 0, y: gutter ? tops[lane] + 15 : tops[lane] - 6 }, name));
  }

  // What is closer together than a pixel can show is drawn once, so a long run costs no more than a short one.
  function spans(lane, indexes) {
    const made = [], marks = [], reached = {};
    for (const index of indexes) {
      const span = data.spans[index];
      if (span.start > view.to) break;
      if (span.end < view.from && x(span.end) < gutter - MARK) continue;
      const top = tops[lane] + span.row * STEP;
      if (span.kind === "demand" || span.end === span.start || (span.kind === "unused" && x(span.end) - x(span.start) < 2 * MARK)) {
        const at = x(span.start), key = `mark ${span.row}`;
        if (at - (reached[key] ?? -9) < 1.5 && index !== picked) continue;
        reached[key] = at;
        marks.push(mark(span, index, at, top));
        continue;
      }
      const left = Math.max(gutter - 4, x(span.start)), right = Math.min(width + 4, x(span.end));
      const wide = Math.max(SHORTEST, right - left);
      if (left + wide - (reached[span.row] ?? -9) < 1 && index !== picked) continue;
      reached[span.row] = left + wide;
      made.push(element("rect", {
        class: `span k-${span.kind}${index === picked ? " picked" : ""}`, "data-i": index,
        x: left, y: top, width: wide, height: ROW, rx: Math.min(3, wide / 2),
      }));
      const room = Math.floor((Math.min(right, width) - Math.max(left, gutter) - 10) / CHARACTER);
      if (room >= 3) {
        const text = span.label.length > room ? `${span.label.slice(0, room - 1)}…` : span.label;
        made.push(element("text", { class: `on${PALE.has(span.kind) ? " pale" : ""}`, x: Math.max(left, gutter) + 5, y: top + 15 }, text));
      }
    }
    return [...made, ...marks];
  }

  function mark(span, index, at, top) {
    const chosen = index === picked ? " picked" : "", middle = top + ROW / 2;
    const d = span.kind === "demand"
      ? `M${at - size} ${top - 4}h${2 * size}l${-size} ${size + 2}zM${at - 0.75} ${top}h1.5v${ROW}h-1.5z`
      : `M${at} ${middle - size - 1}l${size + 1} ${size + 1}l${-size - 1} ${size + 1}l${-size - 1} ${-size - 1}z`;
    return element("path", { class: `span k-${span.kind}${chosen}`, "data-i": index, d });
  }

  // From the guess's bar up to the moment in the model's lane at which its result was handed over.
  function arrows() {
    const made = [];
    let reached = -9;
    for (const arrow of data.arrows) {
      const guess = data.spans[arrow.guess];
      if (arrow.demanded < view.from || arrow.demanded > view.to) continue;
      const to = x(arrow.demanded);
      if (to - reached < 2) continue;
      reached = to;
      const from = Math.max(x(guess.start) + 2, Math.min(to, x(guess.end)) - 10);
      const bottom = tops.guesses + guess.row * STEP, top = tops.model + ROW + 1;
      made.push(element("path", { class: "arrow", "marker-end": "url(#head)", d: `M${from} ${bottom}C${from} ${bottom - 10} ${to} ${top + 12} ${to} ${top}` }));
    }
    return made;
  }

  function drawOverview() {
    const wide = overview.clientWidth, high = 22;
    if (!wide) return;
    const svg = element("svg", { viewBox: `0 0 ${wide} ${high}`, height: high, focusable: "false" });
    for (const band of data.bands) {
      const left = band.start / length * wide, right = band.end / length * wide;
      svg.append(element("rect", { class: band.hit === null ? "none" : band.hit ? "hit" : "miss", x: left, y: 6, width: Math.max(1, right - left - (right - left > 4 ? 1 : 0)), height: 10, rx: 1.5 }));
    }
    handle = element("rect", { class: "window", y: 1, height: high - 2, rx: 4 });
    svg.append(handle);
    overview.replaceChildren(svg);
    moveHandle();
  }

  function moveHandle() {
    if (!handle) return;
    const wide = overview.clientWidth;
    const left = Math.max(0, view.from / length * wide), right = Math.min(wide, view.to / length * wide);
    handle.setAttribute("x", Math.min(left, wide - 6) + 1);
    handle.setAttribute("width", Math.max(6, right - left - 2));
  }

  // --- the window ------------------------------------------------------------------------------------------------

  function look(from, to) {
    const span = Math.min(whole.to - whole.from, Math.max(closest, to - from));
    const start = Math.min(whole.to - span, Math.max(whole.from, from + (to - from - span) / 2));
    view.from = start;
    view.to = start + span;
    soon();
  }

  function zoom(factor, around = (view.from + view.to) / 2) {
    const from = around - (around - view.from) * factor;
    look(from, from + (view.to - view.from) * factor);
  }

  function pan(seconds) {
    const span = view.to - view.from;
    const from = Math.min(whole.to - span, Math.max(whole.from, view.from + seconds));
    look(from, from + span);
  }

  const fit = () => look(whole.from, whole.to);

  function lookAtTurn(index) {
    const band = data.bands[index];
    if (!band) return;
    const room = Math.max(closest, band.end - band.start) * 0.06;
    look(band.start - room, band.end + room);
  }

  function currentTurns() {
    const seen = view.to - view.from;
    return data.bands.map((_, index) => index).filter((index) => {
      const band = data.bands[index];
      return Math.min(band.end, view.to) - Math.max(band.start, view.from) > Math.min(seen, band.end - band.start) * 0.34;
    });
  }

  function place() {
    const shown = currentTurns();
    if (!shown.length) return "between turns";
    if (shown.length === data.bands.length) return data.bands.length === 1 ? "one turn" : `all ${data.bands.length} turns`;
    const first = data.bands[shown[0]].turn + 1, last = data.bands[shown[shown.length - 1]].turn + 1;
    return `${first === last ? `turn ${first}` : `turns ${first}–${last}`} of ${data.bands.length}`;
  }

  function nextTurn(by) {
    const shown = currentTurns();
    if (shown.length === data.bands.length && data.bands.length > 1) return lookAtTurn(by > 0 ? 0 : data.bands.length - 1);
    const from = shown.length ? (by > 0 ? shown[shown.length - 1] : shown[0]) : 0;
    lookAtTurn(Math.min(data.bands.length - 1, Math.max(0, from + by)));
  }

  // --- what is pointed at ----------------------------------------------------------------------------------------

  function show(index) {
    const span = data.spans[index];
    if (!span) return;
    const title = document.createElement("h3"), colour = document.createElement("i"), list = document.createElement("dl");
    colour.className = `k-${span.kind}`;
    const name = document.createElement("bdi");
    name.textContent = span.label;
    title.append(colour, `${NAMES[span.kind] ?? span.kind}, turn ${span.turn + 1}:`, name);
    for (const [key, value] of span.facts) {
      const row = document.createElement("div"), term = document.createElement("dt"), fact = document.createElement("dd");
      term.textContent = key;
      fact.textContent = value;
      fact.dir = "auto";
      row.append(term, fact);
      list.append(row);
    }
    details.replaceChildren(title, list);
  }

  function pick(index, { follow = false } = {}) {
    picked = index;
    if (index >= 0) show(index);
    const span = data.spans[index];
    if (follow && span && (span.start < view.from || span.start > view.to)) {
      const seen = view.to - view.from;
      look(span.start - seen / 3, span.start + seen * 2 / 3);
    }
    soon();
  }

  function nextItem(by) {
    const at = inOrder.indexOf(picked);
    const first = Math.max(0, inOrder.findIndex((index) => data.spans[index].start >= view.from));
    const next = at < 0 ? (by > 0 ? first : inOrder.length - 1) : Math.min(inOrder.length - 1, Math.max(0, at + by));
    if (inOrder.length) pick(inOrder[next], { follow: true });
  }

  // --- hands -----------------------------------------------------------------------------------------------------

  const KEYS = {
    ArrowLeft: () => pan(-(view.to - view.from) * 0.15), ArrowRight: () => pan((view.to - view.from) * 0.15),
    ArrowDown: () => nextItem(1), ArrowUp: () => nextItem(-1),
    "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), _: () => zoom(1 / 0.6), 0: fit,
    Home: () => pan(whole.from - view.from), End: () => pan(whole.to - view.to),
    PageUp: () => nextTurn(-1), PageDown: () => nextTurn(1), Escape: () => pick(-1),
  };
  chart.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
    event.preventDefault();
    KEYS[event.key]();
  });

  const local = (event) => event.clientX - chart.getBoundingClientRect().left;
  chart.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.008), secondsAt(local(event)));
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      pan((event.deltaX || event.deltaY) / (width - gutter) * (view.to - view.from));
    }
  }, { passive: false });

  let drag = null;
  const under = (event) => {
    const found = event.target.closest?.("[data-i]");
    return found ? Number(found.dataset.i) : -1;
  };
  chart.addEventListener("pointerdown", (event) => {
    if (event.button === 0) drag = { at: event.clientX, from: view.from, to: view.to, moved: false, on: under(event), band: event.target.dataset?.band };
  });
  chart.addEventListener("pointermove", (event) => {
    if (drag && !drag.moved && Math.abs(event.clientX - drag.at) > 3) {
      drag.moved = true;
      chart.setPointerCapture(event.pointerId);
      chart.classList.add("dragging");
    }
    if (drag?.moved) {
      const shift = (drag.at - event.clientX) / (width - gutter) * (drag.to - drag.from);
      view.from = drag.from;
      view.to = drag.to;
      pan(shift);
    } else {
      const index = under(event);
      if (index >= 0 && index !== hovered) show(index);
      if (index < 0 && hovered >= 0 && picked >= 0) show(picked);
      hovered = index;
    }
  });
  function release(event) {
    if (drag && !drag.moved && event.type === "pointerup") {
      if (drag.band !== undefined) lookAtTurn(Number(drag.band));
      else pick(drag.on);
    }
    drag = null;
    chart.classList.remove("dragging");
  }
  chart.addEventListener("pointerup", release);
  chart.addEventListener("pointercancel", release);
  chart.addEventListener("dblclick", (event) => zoom(0.4, secondsAt(local(event))));

  function jump(event) {
    if (event.type === "pointermove" && !(event.buttons & 1)) return;
    const box = overview.getBoundingClientRect(), half = (view.to - view.from) / 2;
    const center = (event.clientX - box.left) / box.width * length;
    pan(center - half - view.from);
  }
  overview.addEventListener("pointerdown", (event) => {
    overview.setPointerCapture(event.pointerId);
    jump(event);
  });
  overview.addEventListener("pointermove", jump);

  const ACTIONS = { previous: () => nextTurn(-1), next: () => nextTurn(1), in: () => zoom(0.6), out: () => zoom(1 / 0.6), fit };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.do) ACTIONS[button.dataset.do]();
    if (button.dataset.turn !== undefined) {
      lookAtTurn(data.bands.findIndex((band) => band.turn === Number(button.dataset.turn)));
      document.getElementById("timeline").scrollIntoView({ block: "start" });
      chart.focus({ preventScroll: true });
    }
  });

  new ResizeObserver(() => {
    soon();
    drawOverview();
  }).observe(chart);
})();
