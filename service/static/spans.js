// A text's words and the spans of them that the user marks. The service counts code points, JavaScript UTF-16 units

// A word is a stretch that the browser's own segmenter finds, so that scripts without spaces have words too. Where it knows
// no better, each run between spaces is one
const segmenter = "Segmenter" in Intl ? new Intl.Segmenter(undefined, {granularity: "word"}) : null;
const segmentsOf = text => segmenter ? Array.from(segmenter.segment(text), one => one.segment) : text.match(/\s+|\S+/gu) ?? [];

const length = text => Array.from(text).length;

// [{text, start, end, blank}], which cover the whole text, in code points
export function piecesOf(text) {
  let end = 0;
  return segmentsOf(text).map(text => ({text, start: end, end: end += length(text), blank: !text.trim()}));
}

export const slice = (text, {start, end}) => Array.from(text).slice(start, end).join("");
export const overlap = (a, b) => a.start < b.end && b.start < a.end;

// As in a query string of the service's: 31-33 in the address, one after another with commas
export const write = spans => spans.map(({start, end}) => `${start}-${end}`).join() || null;

export function read(written) {
  return Array.from((written ?? "").matchAll(/(\d{1,7})-(\d{1,7})/g), ([, start, end]) => ({start: Number(start), end: Number(end)}));
}

// Where a span of `before` is once the text was edited to `after`; null where it was edited itself
export function moved({start, end}, before, after) {
  const [old, now] = [Array.from(before), Array.from(after)], most = Math.min(old.length, now.length);
  let same = 0, behind = 0;
  while (same < most && old[same] === now[same]) same++;
  while (behind < most - same && old.at(-1 - behind) === now.at(-1 - behind)) behind++;
  if (end <= same) return {start, end};
  const by = now.length - old.length;
  return start >= old.length - behind ? {start: start + by, end: end + by} : null;
}
