// -- graphs: boxes from top to bottom, and beside them a lane for each connection that goes past others --
function drawn(boxes) {
  const LINE = 18, GAP = 22, LANE = 9;
  let y = 0;
  const places = boxes.map(([, text]) => { const height = 12 + LINE * (1 + text.length), top = y; y += height + GAP; return { top, height }; });
  const lanes = [];
  const past = [], next = [];
  boxes.forEach(([, , reads], to) => reads.forEach((from) => (to - from === 1 ? next : past).push([from, to])));
  past.sort((p, q) => (p[1] - p[0]) - (q[1] - q[0]) || p[0] - q[0]);
  const taken = past.map(([from, to]) => {
    let lane = lanes.findIndex((held) => held.every(([a, b]) => to <= a || from >= b));
    if (lane < 0) lane = lanes.push([]) - 1;
    lanes[lane].push([from, to]);
    return lane;
  });
  const room = 14 + LANE * lanes.length;
  const width = Math.max(230, Math.min(350, document.documentElement.clientWidth - 50 - room));
  const list = h("ol", { class: "graph" });
  list.style.height = y + "px";
  const svg = s("svg", { width: width + room, height: y, "aria-hidden": "true" });
  boxes.forEach(([title, text, reads, kind], at) => {
    const box = h("li", { class: ["input", "output", "learned", "module"].includes(kind) ? kind : "operation", title: [title, ...text].map(seen).join("\n") }, h("b", null, title), text.map((line) => h("small", null, line)));
    Object.assign(box.style, { top: places[at].top + "px", width: width + "px", height: places[at].height + "px" });
    list.append(box);
  });
  const bottom = (at) => places[at].top + places[at].height;
  const tip = (x, end, name) => s("path", { class: "head " + name, d: `M${x - 3.5} ${end - 7}h7l-3.5 7z` });
  for (const [from, to] of next) svg.append(s("path", { class: "edge", d: `M${width / 2} ${bottom(from)}V${places[to].top - 5}` }), tip(width / 2, places[to].top, ""));
  past.forEach(([from, to], at) => {
    const x = width + 10 + LANE * taken[at], start = bottom(from) - 8, end = places[to].top + 8;
    svg.append(s("path", { class: "edge past", d: `M${width} ${start}H${x - 5}q5 0 5 5V${end - 5}q0 5 -5 5H${width + 6}` }), s("path", { class: "head past", d: `M${width + 7} ${end - 3.5}v7l-7 -3.5z` }));
  });
  list.append(svg);
  return h("div", { class: "frame", tabindex: 0, role: "group", "aria-label": "operations, from input to output" }, list);
}

// -- charts: a vertical axis at the left, a horizontal one below --
function axes(width, height, [x0, x1], [y0, y1], label, logarithmic) {
  const L = 52, B = 34, scale = logarithmic ? Math.log10 : (value) => value;
  const step = nice((y1 - y0 || Math.abs(y1) || 1) / 4);
  y0 = Math.floor(y0 / step + 1e-9) * step;
  y1 = Math.max(Math.ceil(y1 / step - 1e-9) * step, y0 + step);
  const px = (v) => L + ((width - L - 8) * (scale(v) - scale(x0))) / (scale(x1) - scale(x0) || 1);
  const py = (v) => 8 + (height - B - 8) * (1 - (v - y0) / (y1 - y0));
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}` });
  for (let v = y0; v <= y1 + step / 2; v += step) svg.append(s("line", { class: "axis", x1: L, x2: width - 8, y1: py(v), y2: py(v) }), s("text", { x: L - 8, y: py(v) + 4, "text-anchor": "end" }, number(Math.round(v / step * 1e6) / 1e6 * step)));
  const along = Math.max(1, nice((x1 - x0) / 6));
  if (logarithmic) for (let v = 10 ** Math.ceil(Math.log10(x0)); v <= x1 * 1.0001; v *= 10) svg.append(s("line", { class: "axis", x1: px(v), x2: px(v), y1: 8, y2: height - B }), s("text", { x: px(v), y: height - B + 18, "text-anchor": "middle" }, short(v)));
  else for (let v = Math.ceil(x0 / along) * along; v <= x1 + 1e-9; v += along) svg.append(s("text", { x: px(v), y: height - B + 18, "text-anchor": "middle" }, number(v)));
  svg.append(s("text", { x: width - 8, y: height - 2, "text-anchor": "end" }, label));
  return { svg, px, py };
}
function nice(rough) {
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((step) => step >= rough - 1e-12);
}
const extent = (values) => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);

const MARKED = 60; // points of a line that have markers
function chart(title, series, x) {
  const points = series.flatMap(([, found]) => found);
  const { svg, px, py } = axes(460, 230, extent(points.map((p) => p[0])), extent(points.map((p) => p[1])), x, false);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", title + ": " + series.map(([name, found]) => name + " " + plural(found.length, "point")).join(", "));
  series.forEach(([, found], at) => {
    const kind = " s" + (at % 3), single = new Set(found.map(([a]) => a)).size === found.length;
    if (found.length > 1 && single) svg.append(s("polyline", { class: "series" + kind, points: found.map(([a, b]) => px(a).toFixed(1) + "," + py(b).toFixed(1)).join(" ") }));
    if (found.length <= MARKED || !single) svg.append(...found.map(([a, b]) => s("circle", { class: "dot" + kind, cx: px(a).toFixed(1), cy: py(b).toFixed(1), r: 2.5 }, s("title", {}, `${number(a)}: ${number(b)}`))));
  });
  const names = series.filter(([name]) => name).map(([name], at) => [h("span", { class: "key s" + (at % 3) }), name]).flat();
  return h("figure", null, h("figcaption", null, title), svg, names.length ? h("p", { class: "intro" }, names) : null);
}

/** Points of entries that can be walked through by arrow keys, opened, and brushed: `brush` gets the range of x and y. */
function scatter(points, shown, [xLabel, yLabel], range, brush) {
  const width = Math.max(280, Math.min(760, document.documentElement.clientWidth - 40)), height = 300;
  const { svg, px, py } = axes(width, height, extent(points.map((p) => p[0])), extent(points.map((p) => p[1])), xLabel, true);
  const path = (some) => some.map(([x, y]) => `M${px(x).toFixed(1)} ${py(y).toFixed(1)}h0`).join("");
  const inside = ([x, y]) => range.every((end, at) => end === null || (at % 2 ? [x, y][at >> 1] <= end : [x, y][at >> 1] >= end));
  const ordered = points.filter(([, , at]) => shown.has(at)).sort((p, q) => p[0] - q[0] || p[1] - q[1]);
  svg.append(s("path", { class: "points", d: path(points.filter(([, , at]) => !shown.has(at))) }), s("path", { class: "points on", d: path(ordered) }));
  if (range.some((end) => end !== null)) svg.append(s("path", { class: "points chosen", d: path(ordered.filter(inside)) }));
  const ring = s("circle", { class: "ring", r: 7, visibility: "hidden" }), box = s("rect", { class: "brush" });
  svg.append(ring, box);
  const status = h("p", { class: "intro", role: "status" }, "Drag over points to list these alone, click one to open it; with the keyboard: arrows, then Enter.");
  let current = -1, from = null;
  const mark = (at) => {
    current = at;
    const [x, y, entry] = ordered[at];
    ring.setAttribute("visibility", "visible");
    ring.setAttribute("cx", px(x));
    ring.setAttribute("cy", py(y));
    status.textContent = `${seen(data.library.names[entry])}: ${yLabel} ${number(y)}, ${xLabel} ${number(x)}`;
  };
  const open = () => { if (current >= 0) location.hash = "/" + ordered[current][2]; };
  const where = (event) => { const r = svg.getBoundingClientRect(); return [(event.clientX - r.left) * width / r.width, (event.clientY - r.top) * height / r.height]; };
  const distance = ([x, y], [a, b]) => Math.hypot(px(x) - a, py(y) - b);
  const corners = (p, q) => [Math.min(p[0], q[0]), Math.min(p[1], q[1]), Math.abs(p[0] - q[0]), Math.abs(p[1] - q[1])];
  svg.setAttribute("tabindex", 0);
  svg.setAttribute("role", "application");
  svg.setAttribute("aria-label", `${yLabel} against ${xLabel}: ${plural(ordered.length, "point")}; arrow keys go from point to point, Enter opens one`);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowUp: 10, ArrowDown: -10, Home: -ordered.length, End: ordered.length }[event.key];
    if (event.key === "Enter") open();
    if (!step || !ordered.length) return;
    event.preventDefault();
    mark(Math.min(Math.max(current + step, 0), ordered.length - 1));
  });
  svg.addEventListener("pointerdown", (event) => { from = where(event); svg.setPointerCapture(event.pointerId); });
  svg.addEventListener("pointermove", (event) => {
    const to = where(event);
    if (from) ["x", "y", "width", "height"].forEach((name, at) => box.setAttribute(name, corners(from, to)[at]));
    else if (ordered.length) {
      const nearest = ordered.reduce((best, point, at) => (distance(point, to) < distance(ordered[best], to) ? at : best), 0);
      if (distance(ordered[nearest], to) < 12) mark(nearest);
    }
  });
  svg.addEventListener("pointercancel", () => { from = null; });
  svg.addEventListener("pointerup", (event) => {
    if (!from) return; // pressed elsewhere
    const [x, y, w, d] = corners(from, where(event));
    from = null;
    if (Math.max(w, d) < 5) { open(); return; }
    const among = points.filter((p) => px(p[0]) >= x && px(p[0]) <= x + w && py(p[1]) >= y && py(p[1]) <= y + d);
    brush(among.length ? [...extent(among.map((p) => p[0])), ...extent(among.map((p) => p[1]))] : [null, null, null, null]);
  });
  return [h("figcaption", null, `${yLabel} over ${xLabel}`), svg, status];
}
