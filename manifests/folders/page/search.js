// -- search: names at once, the words of texts and code once their index is read --
const [NAME, TEXT, CODE] = [1, 2, 3]; // where a word is found, the best first
const LEAST = 2; // characters of a word that is sought in texts and code
let index = null; // [words, entries by text, entries by code] for each of its files

async function readIndex({ first, files }) {
  index = await Promise.all(Array.from({ length: files }, (_, at) => shard(first + at)));
}
/** Visit the numbers of entries in a string of gaps, until a visit returns true: five bits a character, 32 says that the gap goes on. */
function visit(text, act) {
  let entry = -1, gap = 0, shift = 0;
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at) - 48;
    gap += (code & 31) << shift;
    if (code & 32) { shift += 5; continue; }
    entry += gap;
    if (act(entry)) return;
    gap = shift = 0;
  }
}
/** Does a word contain another? A number matches whole: `cifar-10` is not in `cifar-100`. */
function contains(word, sought) {
  const digit = (text, at) => /\d/.test(text[at] || "");
  for (let at = word.indexOf(sought); at >= 0; at = word.indexOf(sought, at + 1)) {
    const end = at + sought.length;
    if (!(digit(sought, 0) && digit(word, at - 1)) && !(digit(word, end - 1) && digit(word, end))) return true;
  }
  return false;
}
const partsOf = (sought) => sought.split(/[^\p{L}\p{N}_-]+/u).filter(Boolean);
/** Where each of `count` entries has a word, 0 for nowhere. */
const places = new Map();
function placesOf(sought, texts) {
  const key = (index ? "+" : "-") + sought;
  if (places.has(key)) return places.get(key);
  const where = new Uint8Array(texts.length);
  const each = index && sought.length >= LEAST ? partsOf(sought).map((part) => placesOfPart(part, texts.length)) : [];
  for (let at = 0; at < texts.length; at++) {
    if (texts[at].includes(sought)) where[at] = NAME;
    else if (each.length && each.every((found) => found[at])) where[at] = Math.max(...each.map((found) => found[at]));
  }
  places.set(key, where);
  return where;
}
function placesOfPart(part, count) {
  const where = new Uint8Array(count);
  for (const { kind, list } of listsOf(part)) visit(list, (entry) => { if (!where[entry] || kind < where[entry]) where[entry] = kind; });
  return where;
}
/** The words that contain a part of what is sought, with the entries that have them: those in texts first. */
const lists = new Map();
function listsOf(part) {
  if (!lists.has(part)) {
    const found = [[], []];
    for (const [words, ...kinds] of index) words.forEach((word, at) => { if (contains(word, part)) kinds.forEach((of, kind) => { if (of[at]) found[kind].push({ word, kind: TEXT + kind, list: of[at] }); }); });
    lists.set(part, found.flat());
  }
  return lists.get(part);
}
/** A few words by which an entry was found, of its text and of its code. */
function matches(entry, sought, most) {
  const found = { [TEXT]: [], [CODE]: [] };
  for (const part of sought.flatMap(partsOf)) {
    for (const { word, kind, list } of index ? listsOf(part) : []) {
      if (found[kind].length < most && !found[TEXT].includes(word) && !found[kind].includes(word)) visit(list, (other) => { if (other === entry) found[kind].push(word); return other >= entry; });
    }
  }
  return [found[TEXT], found[CODE]];
}
