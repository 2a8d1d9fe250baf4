// What stands in the data is only ever put in as text; there is no innerHTML, no address but of files beside this page.
const SVG = "http://www.w3.org/2000/svg";
// Controls, what turns the direction of text, and what cannot be seen: shown as Python would write them.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
const seen = (text) => String(text).replace(UNSEEN, (c) => {
  const hex = c.charCodeAt(0).toString(16);
  return hex.length < 3 ? "\\x" + hex.padStart(2, "0") : "\\u" + hex.padStart(4, "0");
});

/** An element; children are put in as text unless they are elements. */
function h(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== false && value !== undefined) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null).map((child) => (child instanceof Node ? child : seen(child))));
  return element;
}
/** An element of a drawing. */
function s(name, attributes, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children.map((child) => (child instanceof Node ? child : seen(child))));
  return element;
}

// -- numbers --
const number = (value) => value.toLocaleString("en-US", { maximumFractionDigits: 4 });
const plural = (count, noun) => number(count) + " " + (count === 1 ? noun : noun + "s");
const signed = (value) => (value > 0 ? "+" : value < 0 ? "−" : "") + Math.abs(value).toFixed(2);
/** How to write the numbers of a column: with the same digits, and large ones shortened. */
function format(values) {
  const numbers = values.filter((value) => value !== null);
  const digits = (value) => (String(value).split(".")[1] || "").length;
  const most = Math.min(4, numbers.reduce((longest, value) => Math.max(longest, digits(value)), 0));
  if (most === 0 && numbers.some((value) => value >= 1e5)) return short;
  return (value) => value.toLocaleString("en-US", { minimumFractionDigits: most, maximumFractionDigits: most });
}
function short(value) {
  const [power, unit] = [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e3, " k"]].find(([size]) => value >= size) || [1, ""];
  return Number((value / power).toPrecision(3)).toLocaleString("en-US") + unit;
}
const collator = new Intl.Collator("en", { numeric: true });
const compare = (a, b) => (a === b ? 0 : a === null ? 1 : b === null ? -1 : typeof a === "number" && typeof b === "number" ? a - b : collator.compare(String(a), String(b)));
const slug = (text) => text.toLowerCase().replace(/[^a-z0-9]+/g, "-");

// -- shards: files that call lemur(number, data), read once they are needed --
async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
}
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

// -- the data of this page --
let data;
let lines = []; // of the shard whose entry is shown
let searched = []; // the words that led to it
/** The lines of a text, as numbers. */
function unrolled(runs) {
  const numbers = [];
  for (let at = 0; at < runs.length; at += 2) for (let k = 0; k < runs[at + 1]; k++) numbers.push(runs[at] + k);
  return numbers;
}
const encoded = (path) => path.split("/").map(encodeURIComponent).join("/");
const fileLink = (text, path) => h("a", { href: data.base + encoded(path) }, text);
const LONG = 400; // characters of a cell that is shown whole
function cell(value) {
  if (Array.isArray(value)) return value.map((item, at) => [at ? h("br") : null, cell(item)]).flat(2);
  if (value === null) return "–";
  if (typeof value === "number") return number(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "object" && value.entry !== undefined) return h("a", { href: "#/" + value.entry }, value.text);
  if (typeof value === "object") return fileLink(value.text, value.path);
  if (value.length <= LONG) return value;
  const end = value.lastIndexOf(" ", LONG / 2) > 0 ? value.lastIndexOf(" ", LONG / 2) : LONG / 2;
  return h("details", null, h("summary", null, value.slice(0, end) + " …"), value.slice(end));
}
