// -- views: each kind of the data's views becomes elements --
const VIEWS = {
  note: (view) => view.paragraphs.map((text) => h("p", null, text)),
  facts: (view) => h("dl", null, view.rows.map(([label, value]) => [h("dt", null, label), h("dd", null, cell(value))]).flat()),
  operations: (view) => h("ul", { class: "operations" }, unrolled(view.text).map((line) => h("li", null, lines[line]))),
  table(view) {
    const numeric = view.head.map((_, at) => view.rows.length > 0 && view.rows.every((row) => row[at] === null || typeof row[at] === "number"));
    const written = numeric.map((is, at) => (is && view.rows.some((row) => !Number.isInteger(row[at] ?? 0)) ? format(view.rows.map((row) => row[at])) : number));
    const body = h("tbody");
    const plain = (value) => (value !== null && typeof value === "object" ? value.text : value);
    const fill = (rows) => body.replaceChildren(...rows.map((row) => h("tr", null, row.map((value, at) => h("td", { class: numeric[at] && "num" }, typeof value === "number" ? written[at](value) : cell(value))))));
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
    return h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": view.title }, h("table", null, h("thead", null, h("tr", null, heads)), body));
  },
  results(view) {
    const best = (points) => points.reduce((a, b) => (b[1] > a[1] ? b : a));
    const rows = view.rows.map(([task, dataset, metric, points]) => [dataset, metric, best(points)[1], best(points)[0], points.length, task]);
    const charts = view.rows.filter(([, , , points]) => new Set(points.map((point) => point[0])).size > 2 && points.every((point) => point[0] !== null));
    const values = (points) => points.map(([epoch, value]) => (epoch === null ? "–" : epoch) + ": " + value.toFixed(4)).join(", ");
    return [
      VIEWS.table({ title: view.title, head: ["data set", "metric", "best", "after epochs", "results", "task"], rows }),
      charts.length ? h("div", { class: "charts" }, charts.map(([, dataset, metric, points]) => chart(dataset + ", " + metric, [["", points]], "epoch"))) : null,
      h("details", null, h("summary", null, "all values, as epoch: value"), h("dl", null, view.rows.map(([task, dataset, metric, points]) => [h("dt", null, [task, dataset, metric].join(", ")), h("dd", null, values(points))]).flat())),
    ];
  },
  graph: (view) => drawn(view.boxes),
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
      const text = signed(mean) + (from === null ? "" : " [" + signed(from) + ", " + signed(to) + "]") + " " + view.unit;
      return h("li", { class: decided ? "" : "open" }, h("span", { class: "label" }, name), h("span", { class: "track", "aria-hidden": "true" }, part("i", 0), interval, part("em", mean)), h("span", { class: "value" }, text));
    }));
  },
};

/** A sentence, with what stands between backticks as code. */
const phrased = (text) => text.split("`").map((part, at) => (at % 2 ? h("code", null, part) : part));

function section(view, place) {
  const intro = view.intro ? h("p", { class: "intro" }, phrased(view.intro)) : null;
  const made = h("section", { id: "s-" + slug(view.title), class: "v-" + view.view, "aria-label": view.title }, h("h2", null, view.title), intro);
  made.append(...[VIEWS[view.view](view, place)].flat().filter((part) => part !== null));
  return made;
}
