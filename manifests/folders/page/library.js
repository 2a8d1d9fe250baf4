// -- the library: search, filters, results, order --
const AT_ONCE = 25; // rows at first, then four times as many
function library(given) {
  const texts = given.names.map((name, at) => [name, given.notes[at], ...given.further[at]].join("\n").toLowerCase());
  const everything = given.names.map((_, at) => at);
  const bare = given.names.map((name) => name.replace(/^_+/, ""));
  const alphabet = new Uint32Array(bare.length); // the place of each name in their order
  [...everything].sort((p, q) => collator.compare(bare[p], bare[q]) || p - q).forEach((at, place) => { alphabet[at] = place; });
  const columns = given.numbers.filter(([, values]) => values.some((value) => value !== null)).map(([label, values]) => ({ label, values, text: format(values) }));
  const { benchmarks, limits } = given.results;
  let found = [], range = [null, null, null, null];

  // Controls
  const filled = (name, attributes, ...children) => h(name, { onchange: () => { show(); }, ...attributes }, ...children);
  const search = h("input", { type: "search", autocomplete: "off", spellcheck: "false", placeholder: "names, descriptions", oninput: () => { show(); } });
  const selects = given.facets.map(([label, values, of]) => {
    const counts = values.map(() => 0);
    of.forEach((value) => counts[value]++);
    return filled("select", {}, h("option", { value: "" }, "all"), values.map((value, place) => h("option", { value: place }, (value || "none") + " (" + number(counts[place]) + ")")));
  });
  const tasks = [...new Set(benchmarks.map(([task]) => task))];
  const benchmark = h("select", { onchange: chosen }, h("option", { value: "" }, "all, not compared"), tasks.map((task) => h("optgroup", { label: task || "task unknown" },
    benchmarks.map(([of, dataset, metric, entries], at) => (of === task ? h("option", { value: at }, `${dataset}, ${metric} (${number(entries.length)})`) : null)).filter(Boolean))));
  const effort = filled("select", { disabled: true }, limits.map((limit, at) => h("option", { value: at, selected: limit === null }, limit === null ? "any number" : "at most " + limit)));
  const BEST = h("option", { value: "result", hidden: true, disabled: true }, "best result");
  const sort = filled("select", {}, benchmarks.length ? BEST : [], columns.map(({ label }, at) => h("option", { value: at, selected: label === given.order }, label)), h("option", { value: "name", selected: given.order === null }, "name"));
  const initial = sort.value;
  const count = h("p", { class: "count", role: "status" });
  const head = h("div", { class: "columns", "aria-hidden": "true" });
  const items = h("ol", { class: "list" });
  const more = h("button", { type: "button", onclick: () => { const before = items.children.length; append(before + 4 * AT_ONCE); items.children[before].firstChild.focus(); } }, "show more");

  // Results of one benchmark, within a number of epochs: never those of several
  function resultsNow() {
    if (benchmark.value === "") return null;
    const [task, dataset, metric, entries, best, after] = benchmarks[Number(benchmark.value)];
    const limit = Number(effort.value);
    const values = new Map(), epochs = new Map();
    entries.forEach((entry, at) => {
      if (best[limit][at] === null) return;
      values.set(entry, best[limit][at]);
      epochs.set(entry, after[limit][at]);
    });
    return { label: [dataset, metric].join(", "), values, epochs, text: format(best[limits.length - 1]) };
  }
  function chosen() {
    const any = benchmark.value === "";
    BEST.hidden = BEST.disabled = any;
    effort.disabled = any;
    sort.value = any ? initial : "result";
    range = [null, null, null, null];
    show();
  }
  /** A table of the benchmarks with their best entries. */
  function leaders() {
    const rows = benchmarks.map(([task, dataset, metric, entries, best, after]) => {
      const [values, epochs] = [best[limits.length - 1], after[limits.length - 1]];
      const at = values.indexOf(Math.max(...values));
      return [dataset, metric, task, entries.length, { text: given.names[entries[at]], entry: entries[at] }, values[at], epochs[at]];
    });
    return h("details", null, h("summary", null, "the best of each data set"), VIEWS.table({ title: "Best results", head: ["data set", "metric", "task", given.noun, "the best", "result", "epochs"], rows }));
  }
  /** The result of an entry on the benchmark that most entries have a result of. */
  function anyResult(entry) {
    for (const [, dataset, , entries, best] of benchmarks) {
      const at = entries.indexOf(entry);
      if (at >= 0) return [format(best[limits.length - 1])(best[limits.length - 1][at]), " ", h("br"), dataset];
    }
    return "–";
  }

  // The list
  function show() {
    const words = (searched = search.value.toLowerCase().split(/\s+/).filter(Boolean));
    const wanted = selects.map((select) => (select.value === "" ? null : Number(select.value)));
    const results = resultsNow();
    const among = everything.filter((at) => wanted.every((value, f) => value === null || given.facets[f][2][at] === value) && words.every((word) => texts[at].includes(word)) && (!results || results.values.has(at)));
    const inside = plot(results, among);
    found = among.filter(inside);
    const by = sort.value === "name" ? null : sort.value === "result" ? (at) => results.values.get(at) : (at) => columns[Number(sort.value)].values[at] ?? -Infinity;
    found.sort((p, q) => (by ? by(q) - by(p) || p - q : alphabet[p] - alphabet[q]));
    const all = given.total > everything.length ? ` (of ${number(given.total)}; all are in ${given.elsewhere})` : "";
    count.textContent = `${number(found.length)} of ${plural(everything.length, given.noun.replace(/s$/, ""))}${all}`;
    head.replaceChildren(h("span"), ...columns.map(({ label }) => h("span", null, label)), ...(benchmarks.length ? [h("span", null, results ? results.label : "result")] : []));
    items.replaceChildren();
    items.classList.toggle("ranked", sort.value === "result");
    append(AT_ONCE);
  }
  /** The further name by which an entry is in the list, if neither its name nor its note says why. */
  function because(at) {
    const has = (text) => searched.every((word) => text.toLowerCase().includes(word));
    if (!searched.length || has(given.names[at] + " " + given.notes[at])) return null;
    const other = given.further[at].find(has);
    return other ? given.by + " " + other : null;
  }
  function row(at, results) {
    const value = (label, content) => h("small", { class: "number" }, h("i", null, label + " "), content ?? "–");
    const epochs = results && results.epochs.get(at);
    const last = !benchmarks.length ? [] : [results
      ? h("small", { class: "number" }, h("i", null, results.label + " "), h("strong", null, results.text(results.values.get(at))), epochs ? [" ", h("br"), plural(epochs, "epoch")] : null)
      : value("result", anyResult(at))];
    return h("li", null, h("a", { href: "#/" + at }, h("span", { class: "what" }, h("b", null, given.names[at]), h("small", null, because(at) || given.notes[at])),
      columns.map(({ label, values, text }) => value(label, values[at] === null ? null : text(values[at]))), last));
  }
  function append(upTo) {
    const from = items.children.length, results = resultsNow();
    items.append(...found.slice(from, upTo).map((at) => row(at, results)));
    more.hidden = items.children.length >= found.length;
  }

  // The plot of results over sizes
  const sizes = columns.filter(({ label }) => given.sizes.includes(label));
  const size = filled("select", {}, sizes.map(({ label }, at) => h("option", { value: at }, label)));
  const ends = [0, 1, 2, 3].map((at) => h("input", { type: "number", step: "any", onchange: (event) => { range[at] = event.target.value === "" ? null : Number(event.target.value); show(); } }));
  const figure = h("figure", { class: "plot", hidden: true });
  const brush = (chosen) => { range = chosen; show(); };
  function plot(results, among) {
    figure.hidden = !results || !sizes.length;
    if (figure.hidden) return () => true;
    const { label, values } = sizes[Number(size.value)];
    const points = [...results.values].filter(([at]) => values[at] > 0).map(([at, result]) => [values[at], result, at]);
    ends.forEach((input, at) => { input.value = range[at] ?? ""; });
    figure.querySelector("div").replaceChildren(...(points.length ? scatter(points, new Set(among), [label, results.label], range, brush) : [`No ${label} are known of these.`]));
    figure.querySelector(".between").textContent = label + " from";
    if (range.every((end) => end === null)) return () => true;
    const within = (value, low, high) => (low === null || value >= low) && (high === null || value <= high);
    return (at) => within(values[at] ?? NaN, range[0], range[1]) && within(results.values.get(at), range[2], range[3]);
  }
  const labelled = (label, control, name) => h("label", { class: name }, label, control);
  figure.append(h("div"), h("p", { class: "tools" }, labelled("over", size), h("label", null, h("span", { class: "between" }), ends[0]), labelled("to", ends[1]), labelled("result from", ends[2]), labelled("to", ends[3]),
    h("button", { type: "button", onclick: () => brush([null, null, null, null]) }, "all points")));

  show();
  return h("section", { id: "s-" + slug(given.title), "aria-label": given.title }, h("h2", null, given.title), h("form", { class: "tools", role: "search", onsubmit: (event) => event.preventDefault() },
    labelled("search", search, "search"), selects.map((select, at) => (given.facets[at][1].length > 1 ? labelled(given.facets[at][0], select) : null)),
    benchmarks.length ? [labelled("results of", benchmark), labelled("epochs", effort)] : [], labelled("order", sort)), benchmarks.length ? leaders() : null, figure, count, head, items, more);
}
