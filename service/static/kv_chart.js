// Bytes against tokens, a line a model, drawn from points that the service computed

import {beginning, svg, visible} from "./common.js";
import {binary, grouped} from "./bytes.js";

const COLORS = 8, SOLID = 5;  // --line-0 … in kv.css; the later lines are dashed besides
const TALL = 380, TOP = 14, FOOT = 40, ROW = 15;
const BESIDE = 620;  // from this width on the names stand at the lines' ends
const LONGEST = 30;

const colorOf = index => `var(--line-${index % COLORS})`;
const dashesOf = index => index < SOLID ? "none" : "7 3";

const stroke = (kind, d, index, dashes = dashesOf(index)) =>
  svg("path", {class: kind, d, stroke: colorOf(index), "stroke-dasharray": dashes});

// Numbers from `low` to `high` on pixels from `start` to `end`
class Axis {
  constructor(low, high, start, end, log) {
    Object.assign(this, {low, high, start, end, log});
  }

  at(value) {
    const scale = this.log ? Math.log2 : Number;
    const share = (scale(value) - scale(this.low)) / (scale(this.high) - scale(this.low));
    return this.start + share * (this.end - this.start);
  }

  holds(value) {
    return this.low <= value && value <= this.high;
  }

  // Powers of two, or multiples of one, each with so many pixels
  ticks(room) {
    const most = Math.max(1, Math.abs(this.end - this.start) / room);
    if (this.log) {
      const first = Math.ceil(Math.log2(this.low)), last = Math.floor(Math.log2(this.high));
      const step = Math.ceil((last - first + 1) / most);
      return Array.from({length: Math.ceil((last - first + 1) / step)}, (_, index) => 2 ** (first + index * step));
    }
    const step = 2 ** Math.max(0, Math.ceil(Math.log2((this.high - this.low) / most)));
    return Array.from({length: Math.floor(this.high / step) + 1}, (_, index) => index * step);
  }
}

// `onPoint(tokens or null)` while the user points at a number of tokens, `onChoose(tokens)` once one is chosen
export class Chart {
  constructor(root, {onPoint, onChoose}) {
    Object.assign(this, {root, onPoint, onChoose, shown: null, pointed: null, strong: null});
    root.tabIndex = 0;
    root.role = "slider";
    root.ariaLabel = "Tokens to read off";
    root.addEventListener("pointermove", event => this.point(this.nearest(event)));
    root.addEventListener("pointerleave", () => { if (document.activeElement !== root) this.point(null); });
    root.addEventListener("click", event => onChoose(this.nearest(event)));
    root.addEventListener("blur", () => this.point(null));
    root.addEventListener("keydown", event => this.key(event));
    new ResizeObserver(() => this.draw()).observe(root);
  }

  // `stops`: the tokens that can be read off; lines: {name, index, points: Map of tokens to bytes, most, fits}, where
  // `most` is the model's maximum and `fits` how many tokens the budget holds, each null where there is none
  show(shown) {
    this.shown = shown;
    if (!shown.stops.includes(this.pointed)) this.pointed = null;
    this.tell();
    this.draw();
  }

  // The line that stands out; null: none
  strengthen(index) {
    this.strong = index;
    for (const group of this.root.querySelectorAll("[data-index]")) {
      group.classList.toggle("weak", index !== null && Number(group.dataset.index) !== index);
    }
  }

  point(tokens) {
    if (tokens === this.pointed || !this.shown) return;
    this.pointed = tokens;
    this.mark();
    this.tell();
    this.onPoint(tokens);
  }

  nearest(event) {
    const place = event.clientX - this.root.getBoundingClientRect().left;
    const away = tokens => Math.abs(this.x.at(tokens) - place);
    return this.shown.stops.reduce((best, tokens) => away(tokens) < away(best) ? tokens : best);
  }

  key(event) {
    const {stops, asked} = this.shown, here = stops.indexOf(this.pointed ?? asked), last = stops.length - 1;
    const to = {
      ArrowRight: here + 1, ArrowUp: here + 1, ArrowLeft: here - 1, ArrowDown: here - 1,
      PageUp: here + 8, PageDown: here - 8, Home: 0, End: last,
    }[event.key];
    if (to !== undefined) this.point(stops[Math.min(Math.max(to, 0), last)]);
    else if (event.key === "Enter") this.onChoose(this.pointed ?? asked);
    else if (event.key === "Escape") this.point(null);
    else return;
    event.preventDefault();
  }

  tell() {
    const {stops, asked, lines} = this.shown, tokens = this.pointed ?? asked;
    const sizes = lines.map(line => `${line.name} ${binary(line.points.get(tokens) ?? 0)}`);
    this.root.ariaValueMin = stops[0];
    this.root.ariaValueMax = stops.at(-1);
    this.root.ariaValueNow = tokens;
    this.root.ariaValueText = [`${grouped(tokens)} tokens`, ...sizes].join("; ");
  }

  draw() {
    if (!this.shown || !this.root.clientWidth) return;
    const {lines, stops, budget, log} = this.shown, wide = this.root.clientWidth;
    const sizes = lines.flatMap(line => [...line.points.values()]).filter(Boolean), most = Math.max(1024, ...sizes);
    const low = log ? stops[0] : 0, high = stops.at(-1), beside = wide >= BESIDE;
    const top = budget && (log || budget < 3 * most) ? Math.max(most, budget) : most;
    const floor = log ? 2 ** Math.floor(Math.log2(Math.min(...sizes, budget || most, most / 2))) : 0;
    this.svg = svg("svg", {width: wide, height: TALL, "aria-hidden": "true"});
    this.y = new Axis(floor, top * (log ? 1.5 : 1.08), TALL - FOOT, TOP, log);
    const names = beside ? 6.6 * Math.min(LONGEST, Math.max(...lines.map(line => line.name.length))) + 32 : 28;
    this.x = new Axis(low, high, 72, wide - names, log);
    this.root.replaceChildren(this.svg);
    this.frame();
    for (const line of [...lines].reverse()) this.line(line);
    this.budget();
    if (beside) this.names();
    this.marks = this.svg.appendChild(svg("g", {}));
    this.mark();
    this.strengthen(this.strong);
  }

  frame() {
    const {x, y} = this;
    for (const tick of y.ticks(34)) {
      this.svg.append(svg("line", {class: "rule", x1: x.start, x2: x.end, y1: y.at(tick), y2: y.at(tick)}));
      this.svg.append(svg("text", {x: x.start - 6, y: y.at(tick) + 4, "text-anchor": "end"}, binary(tick)));
    }
    for (const tick of x.ticks(7 * grouped(x.high).length + 16)) {
      this.svg.append(svg("line", {class: "rule", x1: x.at(tick), x2: x.at(tick), y1: y.start, y2: y.end}));
      this.svg.append(svg("text", {x: x.at(tick), y: y.start + 17, "text-anchor": "middle"}, grouped(tick)));
    }
    this.svg.append(svg("path", {class: "axis", d: `M${x.start} ${y.end}V${y.start}H${x.end}`}));
    this.svg.append(svg("text", {x: x.end, y: y.start + 34, "text-anchor": "end"}, "tokens in a sequence →"));
  }

  // Across, with a dot where each line crosses it, and how many tokens that are where there is room
  budget() {
    const {x, y, shown: {budget, lines}} = this;
    if (!budget || !y.holds(budget)) return;
    const height = y.at(budget);
    this.svg.append(svg("line", {class: "budget", x1: x.start, x2: x.end, y1: height, y2: height}));
    this.svg.append(svg("text", {class: "strong", x: x.start + 6, y: height - 6}, `budget ${binary(budget)}`));
    const sides = [{shift: -8, free: x.start + 6 + 7.2 * `budget ${binary(budget)}`.length}, {shift: 18, free: x.start}];
    const crossing = lines.filter(line => line.fits && x.holds(line.fits)).sort((one, other) => one.fits - other.fits);
    for (const {fits, index} of crossing) {
      const place = x.at(fits), group = svg("g", {"data-index": index}), label = grouped(fits);
      group.append(svg("line", {class: "drop", x1: place, x2: place, y1: height, y2: y.start, stroke: colorOf(index)}));
      group.append(svg("circle", {class: "crossing", cx: place, cy: height, r: 5, fill: colorOf(index)}));
      const half = 3.5 * label.length, side = sides.find(({free}) => place - half > free && place + half < x.end);
      if (side) {
        group.append(svg("text", {x: place, y: height + side.shift, "text-anchor": "middle"}, label));
        side.free = place + half + 6;
      }
      this.svg.append(group);
    }
  }

  // Whole to the model's maximum, dotted beyond
  line({index, points, most}) {
    const {x, y} = this, group = svg("g", {"data-index": index});
    const seen = [...points].filter(([tokens, size]) => x.holds(tokens) && y.holds(size));
    const path = part => `M${part.map(([tokens, size]) => `${x.at(tokens).toFixed(1)} ${y.at(size).toFixed(1)}`).join("L")}`;
    const within = seen.filter(([tokens]) => most === null || tokens <= most);
    const beyond = seen.slice(Math.max(0, within.length - 1));
    const drawn = (part, dashes) => group.append(stroke("line", path(part), index, dashes));
    if (within.length > 1) drawn(within, dashesOf(index));
    if (beyond.length > 1) {
      drawn(beyond, "1.5 4");
      if (within.length) {
        const [tokens, size] = within.at(-1);
        group.append(stroke("line", `M${x.at(tokens)} ${y.at(size) - 7}v14`, index, "none"));
      }
    }
    this.svg.append(group);
  }

  // Each at its line's end, moved apart where lines end together
  names() {
    const {x, y, shown: {lines}} = this;
    const last = line => Math.max(y.low, [...line.points.values()].at(-1));
    const ends = lines.map(line => ({line, at: y.at(last(line))})).sort((one, other) => one.at - other.at);
    let free = -Infinity;
    for (const end of ends) free = end.place = Math.max(end.at, free + ROW);
    let limit = y.start;
    for (const end of [...ends].reverse()) limit = (end.place = Math.min(end.place, limit)) - ROW;
    for (const {line: {index, name}, at, place} of ends) {
      const group = svg("g", {"data-index": index});
      group.append(stroke("leader", `M${x.end + 3} ${at}L${x.end + 12} ${place}H${x.end + 24}`, index));
      group.append(svg("text", {class: "strong", x: x.end + 28, y: place + 4}, beginning(visible(name), LONGEST)));
      this.svg.append(group);
    }
  }

  // What is pointed at, else what is asked for
  mark() {
    if (!this.marks) return;
    const {x, y, shown: {lines, asked}} = this, tokens = this.pointed ?? asked;
    this.marks.replaceChildren();
    if (!x.holds(tokens)) return;
    const kind = this.pointed === null ? "asked" : "pointed";
    this.marks.append(svg("line", {class: kind, x1: x.at(tokens), x2: x.at(tokens), y1: y.start, y2: y.end}));
    for (const {index, points} of lines) {
      const size = points.get(tokens);
      if (!y.holds(size)) continue;
      this.marks.append(svg("circle", {class: "mark", cx: x.at(tokens), cy: y.at(size), r: 4.5, fill: colorOf(index)}));
    }
  }
}

// A piece of a line, for a legend
export function swatch(index) {
  const sample = svg("svg", {width: 24, height: 10, "aria-hidden": "true", class: "swatch"});
  sample.append(stroke("line", "M1 5H23", index));
  return sample;
}

// From few tokens to so many, four to an octave, so that corners at powers of two are met; and the models' own maxima
export function stopsFor(longest, maxima, asked) {
  const high = Math.max(longest, 16), low = 2 ** Math.floor(Math.log2(Math.max(1, Math.min(512, high / 1024, asked))));
  const between = [];
  for (let octave = low; octave < high; octave *= 2) {
    for (const part of [1, 1.25, 1.5, 1.75]) between.push(Math.round(octave * part));
  }
  const within = [...between, ...maxima, high].filter(one => low <= one && one <= high);
  return [...new Set(within)].sort((one, other) => one - other);
}
