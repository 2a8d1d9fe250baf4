"use strict";
// What stands in the data is only ever put in as text; there is no innerHTML, no address but of files beside this page.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  // Controls, what turns the direction of text, and what cannot be seen: shown as Python would write them.
  const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
  const seen = (text) => String(text).replace(UNSEEN, (c) => {
    const hex = c.charCodeAt(0).toString(16);
    return hex.length < 3 ? "\\x" + hex.padStart(2, "0") : "\\u" + hex.padStart(4, "0");
  });
  const number = (value) => value.toLocaleString("en-US", { maximumFractionDigits: 4 });

  /** An element; what is given as children is put in as text unless it is an element. */
  function h(name, attributes, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
      else if (value !== null && value !== false) element.setAttribute(key, value === true ? "" : value);
    }
    element.append(...children.flat().filter((child) => child !== null).map((child) => (child instanceof Node ? child : seen(child))));
    return element;
  }
  function s(name, attributes, ...children) {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children.map((child) => (child instanceof Node ? child : seen(child))));
    return element;
  }

  async function unpack(packed) {
    const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
  }

  // -- shards: files that call lemur(number, data), read once they are needed --
  const waiting = new Map();
  const shards = new Map();
  window.lemur = (place, packed) => unpack(packed).then(waiting.get(place).resolve, waiting.get(place).reject);
  function shard(place) {
    if (!shards.has(place)) {
      shards.set(place, new Promise((resolve, reject) => {
        waiting.set(place, { resolve, reject });
        const file = "page/" + String(place).padStart(3, "0") + ".js";
        document.head.append(h("script", { src: file, onerror: () => reject(new Error(file + " cannot be read")) }));
      }));
    }
    return shards.get(place);
  }

  let data;
  let lines = []; // of the shard whose entry is shown
  let searched = []; // the words that led to it
  /** The lines of a text, as numbers. */
  function unrolled(runs) {
    const found = [];
    for (let at = 0; at < runs.length; at += 2) for (let k = 0; k < runs[at + 1]; k++) found.push(runs[at] + k);
    return found;
  }
  const encoded = (path) => path.split("/").map(encodeURIComponent).join("/");
  const fileLink = (text, path) => h("a", { href: data.base + encoded(path) }, text);

  function cell(value) {
    if (Array.isArray(value)) return value.map((item, at) => [at ? h("br") : null, cell(item)]).flat(2);
    if (value === null) return "–";
    if (typeof value === "number") return number(value);
    if (typeof value === "boolean") return value ? "yes" : "no";
    return typeof value !== "object" ? value : value.page ? h("a", { href: encoded(value.page) }, value.text) : fileLink(value.text, value.path);
  }
  const gone = () => h("p", { class: "intro" }, "Left out, so that this page stays small; it is in the folder's own files.");

  // -- views --
  const VIEWS = {
    note: (view) => view.paragraphs.map((text) => h("p", null, text)),
    facts: (view) => h("dl", null, view.rows.map(([label, value]) => [h("dt", null, label), h("dd", null, cell(value))]).flat()),
    table(view) {
      const numeric = view.head.map((_, at) => view.rows.length > 0 && view.rows.every((row) => row[at] === null || typeof row[at] === "number"));
      const body = h("tbody");
      const plain = (value) => (value !== null && typeof value === "object" ? value.text : value);
      const fill = (rows) => body.replaceChildren(...rows.map((row) => h("tr", null, row.map((value, at) => h("td", { class: numeric[at] && "num" }, cell(value))))));
      const heads = view.head.map((label, at) => h("th", { scope: "col", class: numeric[at] && "num" }, h("button", {
        type: "button",
        onclick: () => {
          const falling = heads[at].getAttribute("aria-sort") ? heads[at].getAttribute("aria-sort") === "ascending" : numeric[at];
          heads.forEach((head) => head.removeAttribute("aria-sort"));
          heads[at].setAttribute("aria-sort", falling ? "descending" : "ascending");
          fill([...view.rows].sort((a, b) => (falling ? -1 : 1) * compare(plain(a[at]), plain(b[at]))));
        },
      }, label)));
      fill(view.rows);
      return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": view.title }, h("table", null, h("thead", null, h("tr", null, heads)), body));
    },
    bars(view) {
      const most = Math.max(...view.rows.map((row) => Math.max(row[1], row[2])), 1e-9);
      const bar = (value) => { const i = h("i"); i.style.width = (100 * value) / most + "%"; return i; };
      return h("ul", { class: "bars" }, view.rows.map(([label, dark, light, told]) => h("li", null,
        h("span", { class: "label" }, label), h("span", { class: "track", "aria-hidden": "true" }, bar(light), bar(dark)), h("span", { class: "told" }, told))));
    },
    code(view) {
      const file = view.path ? h("p", null, fileLink("open the file", view.path)) : null;
      if (view.text === null) return [file, gone()];
      const rows = unrolled(view.text).map((line) => h("span", { class: /^\s*#/.test(lines[line]) && "remark" }, lines[line]));
      return [file, h("pre", { class: "code", tabindex: 0, role: "region", "aria-label": view.title }, rows)];
    },
    versions(view, place) {
      if (view.text === null) return gone();
      const names = data.library.further[place];
      const one = unrolled(view.text);
      const diff = h("div", { class: "diff", tabindex: 0, role: "region", "aria-label": "difference" });
      const buttons = view.rows.map(([told, text], at) => h("button", {
        type: "button", role: "option", "aria-selected": "false", tabindex: -1,
        onclick(event) {
          buttons.forEach((button) => { button.setAttribute("aria-selected", button === event.currentTarget); button.tabIndex = button === event.currentTarget ? 0 : -1; });
          diff.replaceChildren(...(text === null ? [gone()] : difference(one, unrolled(text))));
          diff.scrollTop = 0;
        },
      }, names[at] || "number " + (at + 1), h("small", null, told)));
      const wanted = searched.length ? names.findIndex((name) => searched.every((word) => name.toLowerCase().includes(word))) : -1;
      const first = buttons[Math.max(wanted, 0)];
      first.click();
      requestAnimationFrame(() => { first.parentNode.scrollTop = first.offsetTop - first.parentNode.offsetTop; });
      const go = (event) => {
        const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -buttons.length, End: buttons.length };
        if (!(event.key in steps)) return;
        event.preventDefault();
        const at = Math.min(Math.max(buttons.indexOf(document.activeElement) + steps[event.key], 0), buttons.length - 1);
        buttons[at].focus();
        buttons[at].click();
      };
      return h("div", { class: "split" }, h("div", { class: "pick", role: "listbox", "aria-label": "removed codes", onkeydown: go }, buttons), diff);
    },
    graph: (view) => (view.boxes === null ? gone() : drawn(view.boxes.boxes)),
    curves: (view) => h("div", { class: "charts" }, view.charts.map(([title, series]) => chart(title, series, view.x))),
    pairs(view) {
      const ends = view.rows.flatMap((row) => row.slice(1)).filter((value) => value !== null);
      const span = Math.max(...ends.map(Math.abs), 0.01);
      const [low, high] = [Math.min(0, ...ends) - 0.1 * span, Math.max(0, ...ends) + 0.1 * span];
      const at = (value) => (100 * (value - low)) / (high - low) + "%";
      const part = (name, left, width) => { const made = h(name); made.style.left = at(left); if (width !== undefined) made.style.width = width; return made; };
      return h("ul", { class: "bars pairs" }, view.rows.map(([name, mean, from, to]) => {
        const decided = from !== null && (from > 0 || to < 0);
        const interval = from === null ? null : part("b", from, (100 * (to - from)) / (high - low) + "%");
        const told = signed(mean) + (from === null ? "" : " [" + signed(from) + ", " + signed(to) + "]") + " " + view.unit;
        return h("li", { class: decided ? "" : "open" }, h("span", { class: "label" }, name), h("span", { class: "track", "aria-hidden": "true" }, part("i", 0), interval, part("em", mean)), h("span", { class: "told" }, told));
      }));
    },
  };
  const signed = (value) => (value > 0 ? "+" : value < 0 ? "−" : "") + Math.abs(value).toFixed(2);
  const compare = (a, b) => (a === b ? 0 : a === null ? 1 : b === null ? -1 : typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));

  function section(view, place) {
    const intro = view.intro ? h("p", { class: "intro" }, view.intro) : null;
    const made = h("section", { id: "s-" + slug(view.title), class: "v-" + view.view, "aria-label": view.title }, h("h2", null, view.title), intro);
    made.append(...[VIEWS[view.view](view, place)].flat().filter((part) => part !== null));
    return made;
  }
  const slug = (text) => text.toLowerCase().replace(/[^a-z0-9]+/g, "-");

  // -- differences: Myers 1986, over the numbers of lines --
  function matched(a, b) {
    let start = 0, enda = a.length, endb = b.length;
    while (start < enda && start < endb && a[start] === b[start]) start++;
    while (enda > start && endb > start && a[enda - 1] === b[endb - 1]) { enda--; endb--; }
    const [n, m] = [enda - start, endb - start];
    const most = Math.min(n + m, 3000);
    const trace = [];
    let v = new Int32Array(2 * most + 3), found = -1;
    outer: for (let d = 0; d <= most; d++) {
      trace.push(v.slice(most - d, most + d + 3));
      for (let k = -d; k <= d; k += 2) {
        const c = most + 1 + k;
        let x = k === -d || (k !== d && v[c - 1] < v[c + 1]) ? v[c + 1] : v[c - 1] + 1;
        while (x < n && x - k < m && a[start + x] === b[start + x - k]) x++;
        v[c] = x;
        if (x >= n && x - k >= m) { found = d; break outer; }
      }
    }
    const pairs = [];
    for (let x = n, y = m, d = found; d > 0 && (x > 0 || y > 0); d--) {
      const w = trace[d], at = (k) => w[k + d + 1], k = x - y;
      const before = k === -d || (k !== d && at(k - 1) < at(k + 1)) ? k + 1 : k - 1;
      const px = at(before), py = px - before;
      while (x > px && y > py && x > 0 && y > 0 && a[start + x - 1] === b[start + y - 1]) pairs.push([start + --x, start + --y]);
      [x, y] = [px, py];
      if (d === 1) while (x > 0 && y > 0) pairs.push([start + --x, start + --y]);
    }
    pairs.reverse();
    const head = Array.from({ length: start }, (_, at) => [at, at]);
    const tail = Array.from({ length: a.length - enda }, (_, at) => [enda + at, endb + at]);
    return [...head, ...pairs, ...tail];
  }

  function difference(one, other) {
    const rows = [h("div", { class: "row heads" }, h("div", null, "kept"), h("div", null, "removed"))];
    const [a, b] = [one.map((line) => lines[line]), other.map((line) => lines[line])];
    const same = (from, to) => a.slice(from, to).map((line) => h("div", { class: "row same" }, h("div", null, line), h("div", null, line)));
    let i = 0, j = 0, run = 0;
    const settle = (end, last) => {
      const [before, after] = [run ? 3 : 0, last ? 0 : 3];
      if (end - run <= before + after + 3) { rows.push(...same(run, end)); return; }
      const [from, to] = [run + before, end - after];
      rows.push(...same(run, from), h("button", { class: "fold", type: "button", onclick: (event) => event.currentTarget.replaceWith(...same(from, to)) }, "show " + number(to - from) + " equal lines"), ...same(to, end));
    };
    for (const [x, y] of [...matched(one, other), [a.length, b.length]]) {
      if (x === i && y === j && x < a.length) { i++; j++; continue; }
      if (x > i || y > j) {
        settle(i, false);
        for (let k = 0; k < Math.max(x - i, y - j); k++) {
          const [p, q] = [i + k < x ? a[i + k] : null, j + k < y ? b[j + k] : null];
          const [l, r] = p !== null && q !== null ? marked(p, q) : [[p], [q]];
          rows.push(h("div", { class: "row" }, p === null ? h("div", { class: "none" }) : h("del", { class: "taken" }, l), q === null ? h("div", { class: "none" }) : h("ins", { class: "added" }, r)));
        }
        [i, j, run] = [x, y, x];
      }
      i++; j++;
    }
    if (run < a.length || rows.length === 1) settle(a.length, true);
    return rows;
  }
  /** Two lines, with what differs between their common beginning and end marked. */
  function marked(p, q) {
    let from = 0, back = 0;
    while (from < p.length && p[from] === q[from]) from++;
    while (back < Math.min(p.length, q.length) - from && p[p.length - 1 - back] === q[q.length - 1 - back]) back++;
    return [p, q].map((t) => [t.slice(0, from), from < t.length - back ? h("mark", null, t.slice(from, t.length - back)) : null, t.slice(t.length - back)]);
  }

  // -- graphs: boxes from top to bottom, and beside them a lane for each connection that goes past others --
  function drawn(boxes) {
    const LINE = 18, GAP = 22, LANE = 9;
    let y = 0;
    const places = boxes.map(([, told]) => { const height = 12 + LINE * (1 + told.length), top = y; y += height + GAP; return { top, height }; });
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
    boxes.forEach(([title, told, reads, kind], at) => {
      const box = h("li", { class: ["input", "output", "learned", "module"].includes(kind) ? kind : "operation", title: [title, ...told].map(seen).join("\n") }, h("b", null, title), told.map((line) => h("small", null, line)));
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
    return h("div", { class: "frame", tabindex: 0, role: "region", "aria-label": "operations, from input to output" }, list);
  }

  // -- charts --
  function chart(title, series, x) {
    const [W, H, L, B] = [460, 230, 52, 34];
    const points = series.flatMap(([, found]) => found);
    const [x0, x1] = [Math.min(...points.map((p) => p[0])), Math.max(...points.map((p) => p[0]))];
    let [y0, y1] = [Math.min(...points.map((p) => p[1])), Math.max(...points.map((p) => p[1]))];
    const step = nice((y1 - y0 || Math.abs(y1) || 1) / 4);
    y0 = Math.floor(y0 / step) * step; y1 = Math.max(Math.ceil(y1 / step - 1e-9) * step, y0 + step);
    const px = (v) => L + ((W - L - 8) * (v - x0)) / (x1 - x0 || 1), py = (v) => 8 + (H - B - 8) * (1 - (v - y0) / (y1 - y0));
    const svg = s("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": title });
    for (let v = y0; v <= y1 + step / 2; v += step) svg.append(s("line", { class: "axis", x1: L, x2: W - 8, y1: py(v), y2: py(v) }), s("text", { x: L - 8, y: py(v) + 4, "text-anchor": "end" }, number(Math.round(v / step * 1e6) / 1e6 * step)));
    const along = Math.max(1, nice((x1 - x0) / 6));
    for (let v = Math.ceil(x0 / along) * along; v <= x1 + 1e-9; v += along) svg.append(s("text", { x: px(v), y: H - B + 18, "text-anchor": "middle" }, number(v)));
    svg.append(s("text", { x: W - 8, y: H - 2, "text-anchor": "end" }, x));
    series.forEach(([, found], at) => svg.append(found.length > 1
      ? s("polyline", { class: "series s" + (at % 3), points: found.map(([a, b]) => px(a).toFixed(1) + "," + py(b).toFixed(1)).join(" ") })
      : s("circle", { class: "series s" + (at % 3), cx: px(found[0][0]), cy: py(found[0][1]), r: 3 })));
    return h("figure", null, h("figcaption", null, title), svg, h("p", { class: "intro" }, series.map(([name], at) => [h("span", { class: "key s" + (at % 3) }), name]).flat()));
  }
  function nice(rough) {
    const power = 10 ** Math.floor(Math.log10(rough || 1));
    return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((step) => step >= rough - 1e-12);
  }

  // -- the library: search, filters, order --
  const AT_ONCE = 100;
  function library(given) {
    const texts = given.names.map((name, at) => [name, given.notes[at], ...given.further[at]].join("\n").toLowerCase());
    const order = given.names.map((_, at) => at);
    const bare = given.names.map((name) => name.replace(/^_+/, ""));
    const search = h("input", { type: "search", autocomplete: "off", spellcheck: "false", oninput: () => list() });
    const selects = given.facets.map(([label, values, at]) => {
      const counts = values.map(() => 0);
      at.forEach((value) => counts[value]++);
      return h("select", { onchange: () => list() }, h("option", { value: "" }, "all"), values.map((value, place) => h("option", { value: place }, (value || "none") + " (" + number(counts[place]) + ")")));
    });
    const sort = h("select", { onchange: () => list() }, given.numbers.map(([label], at) => h("option", { value: at, selected: label === given.order }, label)), h("option", { value: "name", selected: given.order === null }, "name"));
    const count = h("p", { class: "count", role: "status" });
    const items = h("ul", { class: "list" });
    const more = h("button", { type: "button", onclick: () => { const before = items.children.length; show(before + AT_ONCE); items.children[before].firstChild.focus(); } }, "show more");
    let found = [];
    function list() {
      const words = (searched = search.value.toLowerCase().split(/\s+/).filter(Boolean));
      const wanted = selects.map((select) => (select.value === "" ? null : Number(select.value)));
      found = order.filter((at) => wanted.every((value, f) => value === null || given.facets[f][2][at] === value) && words.every((word) => texts[at].includes(word)));
      const by = sort.value === "name" ? null : given.numbers[Number(sort.value)][1];
      const value = (at) => (by[at] === null ? -Infinity : by[at]);
      if (by) found.sort((p, q) => value(q) - value(p) || p - q);
      else found.sort((p, q) => compare(bare[p], bare[q]) || p - q);
      const all = given.total > order.length ? ` (of ${number(given.total)}; all are in ${given.elsewhere})` : "";
      count.textContent = `${number(found.length)} of ${number(order.length)} ${given.noun}${all}`;
      items.replaceChildren();
      show(AT_ONCE);
    }
    /** The further name by which an entry was found, where neither its name nor its note has the words. */
    function otherwise(at) {
      const has = (text) => searched.every((word) => text.toLowerCase().includes(word));
      const other = has(given.names[at] + " " + given.notes[at]) ? undefined : given.further[at].find(has);
      return other && given.by + " " + other;
    }
    function show(upTo) {
      const from = items.children.length;
      items.append(...found.slice(from, upTo).map((at) => h("li", null, h("a", { href: "#/" + at },
        h("b", null, given.names[at]), h("small", { class: "right" }, given.facets.map(([, values, of]) => values[of[at]]).slice(0, 2).join(" · ")),
        h("small", null, otherwise(at) || given.notes[at]), h("small", { class: "right" }, given.numbers.map(([label, values]) => (values[at] === null ? null : label + " " + number(values[at]))).filter(Boolean).join(" · "))))));
      more.hidden = items.children.length >= found.length;
    }
    list();
    const labelled = (label, control, name) => h("label", { class: name }, label, control);
    return h("section", { id: "s-" + slug(given.title), "aria-label": given.title }, h("h2", null, given.title), h("form", { class: "tools", role: "search", onsubmit: (event) => event.preventDefault() },
      labelled("search", search, "search"), selects.map((select, at) => labelled(given.facets[at][0], select)), labelled("order", sort)), count, items, more);
  }

  // -- one entry --
  async function entry(place) {
    const starts = data.library.starts;
    let file = starts.length - 1;
    while (starts[file] > place) file--;
    const title = h("h1", { tabindex: -1 }, data.library.names[place]);
    const back = h("p", null, h("a", { href: "#" }, "← " + data.library.title.toLowerCase()));
    detail.replaceChildren(back, title, h("p", { class: "lead" }, data.library.notes[place]), h("p", { role: "status" }, "reading …"));
    title.focus({ preventScroll: true });
    try {
      const found = await shard(file);
      if (here() !== place) return;
      lines = found.lines;
      detail.lastChild.remove();
      detail.append(...found.entries[place - starts[file]].map((view) => section(view, place)));
    } catch (error) {
      detail.lastChild.textContent = "Not to be shown: " + seen(error.message) + ".";
    }
  }
  const here = () => (/^#\/\d+$/.test(location.hash) ? Number(location.hash.slice(2)) : null);
  let overview, detail, around, left = null, scrolled = 0;
  function turn() {
    const place = here();
    const opened = place !== null && data.library && place < data.library.names.length;
    if (opened && !overview.hidden) [left, scrolled] = [place, scrollY];
    const back = !opened && overview.hidden;
    [overview, ...around].forEach((part) => { part.hidden = opened; });
    detail.hidden = !opened;
    document.title = (opened ? seen(data.library.names[place]) + " – " : "") + seen(data.title);
    if (opened) { scrollTo(0, 0); entry(place); }
    else if (back && location.hash.length < 2) { detail.replaceChildren(); document.querySelector(`.list a[href="#/${left}"]`)?.focus(); scrollTo(0, scrolled); }
    else if (location.hash.length > 1) document.getElementById(location.hash.slice(1))?.scrollIntoView();
  }

  async function start() {
    data = await unpack(JSON.parse(document.getElementById("data").textContent));
    const sections = data.views.map((view) => section(view));
    const titles = data.views.map((view) => view.title);
    if (data.library) {
      sections.splice(2, 0, library(data.library));
      titles.splice(2, 0, data.library.title);
    }
    overview = h("div", null, sections);
    detail = h("div", { class: "entry", hidden: true });
    const jump = (title) => h("li", null, h("a", { href: "#s-" + slug(title) }, title));
    around = [h("header", null, h("p", { class: "kind" }, data.kind), h("h1", null, data.title), h("p", { class: "lead" }, data.lead)),
      h("nav", { "aria-label": "sections" }, h("ul", null, titles.map(jump)))];
    const main = h("main", { id: "main", tabindex: -1 }, overview, detail);
    document.body.append(h("a", { class: "skip", href: "#main" }, "to the content"), h("div", { class: "shell" }, around, main));
    addEventListener("hashchange", turn);
    turn();
    document.documentElement.dataset.ready = Math.round(performance.now());
  }
  start().catch((error) => document.body.append(h("p", null, "This page cannot be shown: " + error.message)));
})();
