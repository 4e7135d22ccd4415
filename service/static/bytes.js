// Sizes for a reader, and from one. KiB, MiB, GiB are powers of 1024; kB, MB, GB powers of 1000

const PREFIXES = ["", "K", "M", "G", "T", "P", "E"];
const ROUNDED = {maximumFractionDigits: 2, roundingMode: "halfEven", useGrouping: false};  // as the service's `human`

function scaled(bytes, base, unit) {
  let power = 0;
  while (power < 6 && bytes / base ** (power + 1) >= 0.995) power++;
  return `${(bytes / base ** power).toLocaleString("en", ROUNDED)} ${unit(PREFIXES[power])}`;
}

export const binary = bytes => scaled(bytes, 1024, prefix => prefix ? `${prefix}iB` : "B");
export const decimal = bytes => scaled(bytes, 1000, prefix => `${prefix === "K" ? "k" : prefix}B`);
export const grouped = number => number.toLocaleString("en");
// JSON's larger numbers have lost their last digits on the way into JavaScript
export const exact = bytes => `${Number.isSafeInteger(bytes) ? "" : "about "}${grouped(bytes)} bytes`;

// "24 GiB", "1.5TB", "1000000": in bytes; null where it is no size
export function parseBytes(text) {
  const parts = /^\s*(\d+(?:\.\d+)?)\s*(?:([kmgtp]?)(i?)b)?\s*$/i.exec(text.replaceAll(",", ""));
  if (!parts) return null;
  const [, number, prefix = "", i] = parts;
  const bytes = Math.round(Number(number) * (i ? 1024 : 1000) ** PREFIXES.indexOf(prefix.toUpperCase()));
  return Number.isSafeInteger(bytes) ? bytes : null;
}
