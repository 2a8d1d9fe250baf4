// -- search: names at once, the words of texts and code once their index is read --
// Where a word is found, the best first: at the start of a word in texts, in code; inside one in texts, in code.
const [NAME, TEXT, CODE, IN_TEXT, IN_CODE] = [1, 2, 3, 4, 5];
const WAYS = { name: [NAME], description: [TEXT, IN_TEXT], code: [CODE, IN_CODE] };
const WORTH = [0, 8, 4, 2, 1.5, 1]; // of a word by its place; a rare word is worth more
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
/** The worth of entries for several words together, by the places of each word. */
function worthOf(where, count) {
  const worth = new Float64Array(count);
  for (const found of where) {
    const rarity = Math.log(1 + count / found.reduce((many, place) => many + (place ? 1 : 0), 0));
    for (let at = 0; at < count; at++) worth[at] += WORTH[found[at]] * rarity;
  }
  return worth;
}
function placesOfPart(part, count) {
  const where = new Uint8Array(count);
  for (const { rank, list } of listsOf(part)) visit(list, (entry) => { if (!where[entry] || rank < where[entry]) where[entry] = rank; });
  return where;
}
/** The words that contain a part of what is sought, with the entries that have them, the best first. */
const lists = new Map();
function listsOf(part) {
  if (!lists.has(part)) {
    const found = [];
    for (const [words, texts, codes] of index) {
      words.forEach((word, at) => {
        if (!contains(word, part)) return;
        const inside = word.startsWith(part) || word.includes("_" + part) || word.includes("-" + part) ? 0 : IN_TEXT - TEXT;
        if (texts[at]) found.push({ word, rank: TEXT + inside, list: texts[at] });
        if (codes[at]) found.push({ word, rank: CODE + inside, list: codes[at] });
      });
    }
    lists.set(part, found.sort((p, q) => p.rank - q.rank));
  }
  return lists.get(part);
}
/** A few words by which an entry was found, of its text and of its code. */
function matches(entry, sought, most) {
  const [texts, codes] = [new Set(), new Set()];
  for (const part of sought.flatMap(partsOf)) {
    for (const { word, rank, list } of index ? listsOf(part) : []) {
      const words = WAYS.code.includes(rank) ? codes : texts;
      if (words.size < most && !texts.has(word)) visit(list, (other) => { if (other === entry) words.add(word); return other >= entry; });
    }
  }
  return [[...texts], [...codes]];
}
