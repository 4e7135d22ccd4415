// How candidates are named and coloured, wherever the tab of pronouns shows them

import {beginning, element, visible} from "./common.js";

const COLORS = 5;
const LONGEST_NAME = 40;
export const UNDECIDED = "none";  // stands in the place of a candidate's index

// A to Z, then A2 and so on
export const letterOf = index => String.fromCharCode(65 + index % 26) + (index < 26 ? "" : 1 + Math.floor(index / 26));
// The service names candidates by number
export const withLetters = text =>
  text.replace(/\b(candidate) (\d+)\b/gi, (_, word, index) => `${word} ${letterOf(Number(index))}`);
export const choiceClass = index => `choice choice-${index % COLORS}`;
export const badge = index => element("span", {className: `badge ${choiceClass(index)}`, textContent: letterOf(index)});

export const nameOfCandidate = ({text}) => visible(beginning(text, LONGEST_NAME));
export const lettered = ({candidates}, index) => `${letterOf(index)} “${nameOfCandidate(candidates[index])}”`;
export const badged = (candidate, index) => [badge(index), " ", element("bdi", {textContent: nameOfCandidate(candidate)})];

// What is not quite nothing or all does not look so
export function percent(share) {
  const decimals = share > 0 && share < 0.1 || share > 0.99 && share < 1 ? 1 : 0;
  return `${(100 * share).toFixed(decimals)}\u00a0%`;
}

export function bar(share, index) {
  const filled = element("i", {className: choiceClass(index)});
  filled.style.width = `${100 * Math.min(1, share)}%`;
  return element("span", {className: "bar"}, filled);
}

export const header = (scope, ...content) => element("th", {scope}, ...content);
export const scrolled = (name, table) => element("div", {className: "table", role: "region", ariaLabel: name, tabIndex: 0}, table);
