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
