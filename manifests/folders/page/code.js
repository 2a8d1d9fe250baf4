// -- code: highlighted, its heading comment folded; to copy, and to keep as a file --
const TOKEN = new RegExp([
  /#[^\n]*/, /(?:\b[rRbBfFuU]{1,2})?(?:"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$))/, /(?:\b[rRbBfFuU]{1,2})?(?:"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)/,
  /\b(?:False|None|True|and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|nonlocal|not|or|pass|raise|return|try|while|with|yield)\b/,
  /\b\d[\w.]*/, /(?<=\b(?:def|class)\s+)[^\W\d]\w*/,
].map((part) => "(" + part.source + ")").join("|"), "g");
const KINDS = ["c", "s", "s", "k", "n", "d"]; // of tokens: comment, string, keyword, number, definition
/** For each line of a code, its parts as text or elements. */
function highlighted(text) {
  const rows = [[]];
  const put = (part, kind) => part.split("\n").forEach((piece, at) => {
    if (at) rows.push([]);
    if (piece) rows[rows.length - 1].push(kind ? h("i", { class: kind }, piece) : piece);
  });
  let last = 0;
  for (const match of text.matchAll(TOKEN)) {
    put(text.slice(last, match.index));
    put(match[0], KINDS[match.slice(1).findIndex((group) => group !== undefined)]);
    last = match.index + match[0].length;
  }
  put(text.slice(last));
  return rows;
}
const HEADING = 4; // comment lines at the top from which they are folded
VIEWS.code = (view, place) => {
  const file = view.path ? fileLink("open the file", view.path) : null;
  const text = unrolled(view.text).map((line) => lines[line]).join("\n");
  const rows = highlighted(text).map((parts) => h("span", null, parts));
  const first = rows.findIndex((row) => !/^\s*(#.*)?$/.test(row.textContent));
  const pre = h("pre", { class: "code", tabindex: 0, role: "group", "aria-label": view.title }, rows);
  const buttons = [h("button", { type: "button", onclick: (event) => copy(text, event.currentTarget, pre) }, "copy"), h("button", { type: "button", onclick: () => keep(text, view, place) }, "download"), file];
  if (first >= HEADING) {
    const unfold = h("button", { type: "button", onclick: () => fold(!rows[0].hidden) });
    const fold = (folded) => {
      rows.slice(0, first).forEach((row) => { row.hidden = folded; });
      pre.style.counterReset = "line " + (folded ? first : 0);
      unfold.setAttribute("aria-expanded", !folded);
      unfold.textContent = (folded ? "show " : "hide ") + plural(first, "line") + " of heading comments";
    };
    fold(true);
    buttons.push(unfold);
  }
  return [h("p", { class: "buttons" }, buttons), pre];
};
async function copy(text, button, pre) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "copied";
  } catch {
    getSelection().selectAllChildren(pre); // a browser that keeps the clipboard from files: the reader copies by hand
    button.textContent = "selected";
  }
  setTimeout(() => { button.textContent = label; }, 2000);
}
function keep(text, view, place) {
  const name = (place === undefined ? view.title : data.library.names[place]).replace(/[^\w.-]+/g, "_") + ".py";
  const link = h("a", { href: URL.createObjectURL(new Blob([text], { type: "text/plain" })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// -- versions: texts beside a first one --
VIEWS.versions = (view, place) => {
  const names = data.library.further[place].map((name, at) => name || "number " + (at + 1));
  const one = unrolled(view.text);
  const diff = h("div", { class: "diff", tabindex: 0, role: "group", "aria-label": "difference" });
  const buttons = view.rows.map(([caption, text], at) => h("button", {
    type: "button", role: "option", "aria-selected": "false", tabindex: -1,
    onclick(event) {
      buttons.forEach((button) => { button.setAttribute("aria-selected", button === event.currentTarget); button.tabIndex = button === event.currentTarget ? 0 : -1; });
      diff.replaceChildren(...difference(one, unrolled(text)));
      diff.scrollTop = 0;
    },
  }, names[at] || "number " + (at + 1), h("small", null, caption)));
  const wanted = searched.length ? names.findIndex((name) => searched.every((word) => name.toLowerCase().includes(word))) : -1;
  const first = buttons[Math.max(wanted, 0)];
  first.click();
  requestAnimationFrame(() => { first.parentNode.scrollTop = first.offsetTop - first.parentNode.offsetTop; });
  const go = (event) => {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -buttons.length, End: buttons.length };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const visible = buttons.filter((button) => !button.hidden);
    const at = Math.min(Math.max(visible.indexOf(document.activeElement) + steps[event.key], 0), visible.length - 1);
    visible[at].focus();
    visible[at].click();
  };
  const pick = h("div", { class: "pick", role: "listbox", "aria-label": view.title, onkeydown: go }, buttons);
  if (buttons.length < 10) return h("div", { class: "split" }, pick, diff);
  const status = h("small", { role: "status" });
  const search = h("input", {
    type: "search", autocomplete: "off", spellcheck: "false", placeholder: "names, stages",
    oninput() {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      buttons.forEach((button) => { button.hidden = !words.every((word) => button.textContent.toLowerCase().includes(word)); });
      const visible = buttons.filter((button) => !button.hidden);
      status.textContent = `${number(visible.length)} of ${number(buttons.length)}`;
      if (visible.length && !visible.some((button) => button.tabIndex === 0)) visible[0].click();
    },
  });
  return h("div", { class: "split" }, h("div", null, h("div", { class: "tools" }, h("label", { class: "search" }, "search", search), status), pick), diff);
};
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

