// What the page and the HTML answers share. An HTML answer holds these modules as text: see formats/page.py

export const at = id => document.getElementById(id);

export function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

export function svg(tag, attributes = {}, textContent = "") {
  const node = Object.assign(document.createElementNS("http://www.w3.org/2000/svg", tag), {textContent});
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

export function fill(select, values, name = String) {
  const before = select.value;
  select.replaceChildren(...values.map(value => element("option", {value, textContent: name(value)})));
  if (values.map(String).includes(before)) select.value = before;
}

// As `visible` in views.py: line ends, tabs and controls as symbols, what hides or turns text around as its code point
const SYMBOLS = {"\n": "↵", "\r": "␍", "\t": "⇥", " ": "␣"};
const HIDDEN = /[\p{C}\p{Zl}\p{Zp}]/gu, JOINER = /[\u200c\u200d]/;
// Spaces of every kind, joiners, and letters, a mark and a symbol that show nothing
const BLANK = /^[\s\u200c\u200d\u034f\u115f\u1160\u2800\u3164\uffa0]*$/;
const codePoint = character => `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

export function visible(text) {
  if (BLANK.test(text)) return Array.from(text, one => SYMBOLS[one] ?? codePoint(one)).join("");
  const shown = text.replace(HIDDEN, one => JOINER.test(one) ? one : SYMBOLS[one] ?? codePoint(one));
  return /^\p{M}/u.test(text) ? `◌${shown}` : shown;
}

// As JSON, where the same characters stand as escapes, so that it reads back as the value
export function visibleJson(value, indent) {
  return JSON.stringify(value, null, indent).replace(HIDDEN, one => one === "\n" || JOINER.test(one) ? one :
    one.split("").map(unit => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`).join(""));
}

export function beginning(text, longest) {
  const characters = Array.from(text);
  return characters.length > longest ? `${characters.slice(0, longest - 1).join("")}…` : text;
}

// Of a model that was taken because another could not be: a sentence for who looks
export const replacement = ({id, fallback}) => `The first choice of weights could not be had: ${fallback}. Those of ${id} are used instead.`;

// Words between backticks as code
export const prose = text =>
  visible(text).split("`").map((part, place) => place % 2 ? element("code", {textContent: part}) : part);

export const plural = (many, what) => `${many} ${what}${many === 1 ? "" : "s"}`;
export const unique = values => [...new Set(values)];
export const format = weight => Math.abs(weight) >= 0.001 || weight === 0 ? weight.toFixed(3) : weight.toExponential(0);

// Which weights: for a footer
export const provenance = ({id, revision, variant, quantization, dtype}) => [id, revision, variant, quantization, dtype].filter(Boolean).join(" · ");
