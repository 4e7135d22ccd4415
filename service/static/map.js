// One attention map: its tokens with arcs between them, its heat map, and the weights of what is pointed at

import {element, fill, format, svg} from "./common.js";

const MOST_FAINT = 300;  // arcs drawn while nothing is pointed at
const LEAST_SHOWN = 0.01;  // part of the scale below which an arc could not be seen
const MOST_LISTED = 6;
const MOST_SPREAD = 1.4;  // of a line of tokens, times the width that it needs
const LINE_HEIGHT = {least: 56, most: 190};  // of the arcs above a line of tokens
const HEAT_MAP_WIDTH = {least: 280, most: 500}, GAP = 24, TWO_PARTS_WIDTH = 620;
const LEAST_READING = 260;  // pixels, beside the heat map: of few tokens too
const MOST_CELL = 72;
const MOST_LINEAR = 100;  // tokens; of more, most weights are too small for a linear heat map
const LEAST_NAMED = 13, NAMES_WIDTH = 80;  // pixels of a cell that is named, and of the names
const DIRECTIONS = {from: "where it attends to", to: "what attends to it"};
const VIEWS = {both: "arcs and heat map", arcs: "arcs", map: "heat map"};

export class MapView {
  // Fills `root`. `onPoint(token)` is called when the user points at a token or keeps it, with null when they let go;
  // `onKeep(token)` when they keep it, or with null let go of it
  constructor(root, {onPoint = () => {}, onKeep = () => {}, view = "both"} = {}) {
    Object.assign(this, {root, onPoint, onKeep, map: null, shown: null, kept: null, width: 0, states: {}, marks: []});
    this.direction = choice(DIRECTIONS, () => this.again());
    this.view = choice(VIEWS, () => this.layOut());
    this.view.value = view;
    this.noSink = element("input", {type: "checkbox", onchange: () => { if (this.map) this.present(this.shown); }});
    this.lines = svg("svg", {"aria-hidden": "true"});
    this.tokens = element("div", {className: "tokens", role: "group", ariaLabel: "Tokens: arrow keys move, Enter keeps, Escape lets go"});
    this.others = element("div", {className: "others", ariaHidden: "true"});
    this.arcs = element("div", {className: "arcs"}, this.tokens, this.lines, this.others);
    this.canvas = element("canvas");
    this.cursor = element("div", {className: "cursor", hidden: true});
    this.cells = element("div", {className: "cells"}, this.canvas, this.cursor);
    this.rowNames = element("div", {className: "row-names", ariaHidden: "true"});
    this.keyNames = element("div", {className: "key-names", ariaHidden: "true"});
    this.legend = element("p", {className: "hint heat-legend", hidden: true});
    this.heat = element("div", {
      className: "heat-map", role: "application", tabIndex: 0,
      ariaLabel: "Heat map, queries down and keys across: arrow keys move, Enter keeps, Escape lets go",
    }, this.keyNames, this.rowNames, this.cells, this.legend);
    this.readout = element("div", {className: "readout", ariaLive: "polite"});
    const hint = element("p", {className: "hint", textContent: "Point at a token, an arc or a cell; click or Enter keeps it, Escape lets go."});
    this.parts = element("div", {className: "parts"}, element("div", {className: "reading"}, this.arcs, this.readout, hint), this.heat);
    this.sinkChoice = element("label", {}, this.noSink, "Hide arcs to the first token");
    root.classList.add("map-view");
    root.replaceChildren(
      element("div", {className: "controls"},
        element("label", {}, "Show ", this.direction), element("label", {className: "view-choice"}, "as ", this.view), this.sinkChoice),
      this.parts,
    );
    this.listen();
    new ResizeObserver(() => { if (root.clientWidth !== this.width) this.layOut(); }).observe(root);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.paint());
  }

  // {name, axis: [{label, segment?}, …], rows: [query index, …], weights: [[number | null per key], …] in the order of `rows`,
  // scores?: true where they are no probabilities}. What was kept stays kept while the tokens are the same
  show(map) {
    const before = this.map;
    const same = this.map && this.map.axis.length === map.axis.length &&
      this.map.axis.every((one, index) => one.label === map.axis[index].label && one.segment === map.axis[index].segment);
    this.map = map;
    const [low, high] = range(map), rooted = map.axis.length > MOST_LINEAR && low === 0;
    this.scale = weight => high > low ? (weight - low) / (high - low) : 0;
    this.shade = rooted ? weight => Math.sqrt(this.scale(weight)) : this.scale;
    this.legend.hidden = !rooted;
    this.legend.replaceChildren("0 ", element("span", {className: "shades"}), ` ${format(high)}: shades by the square root of the weight`);
    this.root.dataset.map = map.name;
    if (!same) {
      this.shown = this.kept = null;
      this.tokens.replaceChildren(...map.axis.map((one, index) =>
        element("button", {type: "button", textContent: one.label, tabIndex: index ? -1 : 0, ariaPressed: "false", className: this.between(index)})));
      this.others.replaceChildren(...map.axis.map((one, index) =>
        element("span", {textContent: one.label, className: this.between(index)})));
    }
    // Another map of the same tokens and rows has its place: measuring it anew would take longer than drawing it
    if (same && this.width && String(before.rows) === String(map.rows)) this.present(this.shown);
    else {
      this.turn();
      this.layOut();
    }
    this.paint();
  }

  // As if the user pointed at the token, or at none; `onPoint` does not hear of it
  point(token) {
    if (this.map) this.present(token === null ? this.kept : {token});
  }

  // As if the user kept the token, or none; `onKeep` does not hear of it
  hold(token) {
    if (!this.map || (this.kept?.token ?? null) === token || token >= this.map.axis.length) return;
    this.kept = token === null ? null : {token};
    this.present(this.kept);
  }

  turn() {
    const from = this.direction.value === "from", rows = new Set(this.map.rows);
    this.arcs.dataset.direction = this.direction.value;
    [...this.tokens.children].forEach((button, index) => { button.ariaDisabled = String(from && !rows.has(index)); });
  }

  between(index) {
    const {axis} = this.map;
    return index && axis[index].segment !== axis[index - 1].segment ? "second-text" : "";
  }

  // The weight, or null for a key that lies ahead or whose weight was not sent
  weight(row, key) {
    const weight = this.map.weights[row][key];
    return key <= this.map.rows[row] && Number.isFinite(weight) ? weight : null;
  }

  // [token]: the weights that belong to one, its row or its column; null where its row was not asked for
  weightsOf(token) {
    const {axis, rows} = this.map;
    if (this.direction.value === "from") {
      const row = rows.indexOf(token);
      return row < 0 ? null : axis.map((_, key) => this.weight(row, key));
    }
    const column = axis.map(() => null);
    rows.forEach((query, row) => { column[query] = this.weight(row, token); });
    return column;
  }

  // --- layout: tokens on one line where they fit, else queries and keys as two columns ---

  layOut() {
    const room = this.width = this.root.clientWidth;
    if (!room || !this.map) return;
    const {arcs, parts, heat} = this, view = this.view.value;
    arcs.hidden = view === "map";
    heat.hidden = view === "arcs";
    parts.dataset.view = view;
    this.sinkChoice.hidden = arcs.hidden;
    arcs.dataset.form = "line";
    this.tokens.style.width = "";
    const needed = this.tokens.offsetWidth, line = needed <= room;
    const reading = Math.max(needed, LEAST_READING);
    const least = line && view === "both" ? reading + GAP + HEAT_MAP_WIDTH.least : TWO_PARTS_WIDTH;
    const beside = view !== "arcs" && room >= least;
    if (!line) arcs.dataset.form = "columns";
    parts.classList.toggle("beside", beside);
    const most = Math.min(HEAT_MAP_WIDTH.most, NAMES_WIDTH + MOST_CELL * this.map.axis.length);
    heat.style.maxWidth = `${beside && line && view === "both" ? Math.min(most, room - reading - GAP) : most}px`;
    if (line) this.tokens.style.width = `${Math.min(this.arcs.parentNode.clientWidth, MOST_SPREAD * needed)}px`;
    if (!arcs.hidden) this.measure(line);
    if (!heat.hidden) this.nameCells();
    this.present(this.shown);
  }

  // Where arcs begin and end, so that pointing needs no measuring
  measure(line) {
    const buttons = [...this.tokens.children], {lines} = this;
    if (line) {
      const width = this.tokens.offsetWidth;
      const height = Math.min(LINE_HEIGHT.most, Math.max(LINE_HEIGHT.least, width / 3));
      const middles = buttons.map(one => one.offsetLeft + one.offsetWidth / 2);
      size(lines, width, height);
      this.curve = (query, key) => above(middles[query], middles[key], width, height);
    } else {
      size(lines, null, this.tokens.offsetHeight);
      const middles = buttons.map(one => one.offsetTop + one.offsetHeight / 2), width = lines.clientWidth;
      this.curve = (query, key) => `M0 ${middles[query]}C${width / 2} ${middles[query]} ${width / 2} ${middles[key]} ${width} ${middles[key]}`;
    }
    for (const node of this.marks) mark(node, "", "");
    this.marks = [...(line ? this.tokens : this.others).children];
  }

  // Beside the heat map too, where there is room for them
  nameCells() {
    const {axis, rows} = this.map, named = axis.length * LEAST_NAMED <= this.heat.clientWidth - NAMES_WIDTH;
    const names = indices => named ? indices.map(index => element("span", {textContent: axis[index].label})) : [];
    this.heat.classList.toggle("named", named);
    this.rowNames.replaceChildren(...names(rows));
    this.keyNames.replaceChildren(...names(axis.map((_, index) => index)));
  }

  // --- what is shown ---

  paint() {
    if (!this.map) return;
    const {axis, rows} = this.map, style = getComputedStyle(document.documentElement);
    const color = name => style.getPropertyValue(name).trim().split(" ").map(Number);
    const paper = color("--paper"), heat = color("--heat");
    const palette = Array.from({length: 256}, (_, level) => {
      const part = 0.05 + 0.95 * level / 255;  // a weight of 0 still differs from none, which stays transparent
      return paper.map((from, i) => Math.round(from + part * (heat[i] - from)));
    });
    this.canvas.width = axis.length;
    this.canvas.height = rows.length;
    this.canvas.classList.toggle("fine", rows.length > this.canvas.clientHeight);  // several rows to a pixel
    const picture = new ImageData(axis.length, rows.length);
    for (let row = 0, place = 0; row < rows.length; row++) {
      for (let key = 0; key < axis.length; key++, place += 4) {
        const weight = this.weight(row, key);
        if (weight === null) continue;
        const [red, green, blue] = palette[Math.round(255 * this.shade(weight))];
        picture.data[place] = red;
        picture.data[place + 1] = green;
        picture.data[place + 2] = blue;
        picture.data[place + 3] = 255;
      }
    }
    this.canvas.getContext("2d").putImageData(picture, 0, 0);
  }

  // `what` is {token, other?}: a token, and the one at the arc's other end or in the same cell; null for nothing
  present(what) {
    this.shown = what;
    const weights = what && this.weightsOf(what.token);
    this.state("current", what?.token, this.tokens, (button, is) => button.classList.toggle("current", is));
    this.state("pressed", this.kept?.token, this.tokens, (button, is) => { button.ariaPressed = String(is); });
    if (!this.arcs.hidden) {
      this.markAll(weights, what?.other);
      this.drawArcs(what, weights);
    }
    if (!this.heat.hidden) this.placeCursor(what);
    this.readout.replaceChildren(...what ? this.told(what, weights) : this.overview());
  }

  // One of the nodes is in a state; the rest are left alone, since there may be hundreds
  state(name, index, {children}, set) {
    const before = this.states[name];
    if (before && before !== children[index]) set(before, false);
    this.states[name] = children[index];
    if (children[index]) set(children[index], true);
  }

  // Each token in the strength of its weight, with the weight
  markAll(weights, other) {
    const digits = this.map.scores ? 1 : 2, least = 0.5 * 10 ** -digits;
    this.marks.forEach((node, index) => {
      const weight = weights?.[index] ?? null;
      if (weight === null) mark(node, "", "");
      else mark(node, this.scale(weight).toFixed(2), Math.abs(weight) >= least ? weight.toFixed(digits) : "");
    });
    this.state("other", weights?.[other] === null ? undefined : other, {children: this.marks}, (node, is) => node.classList.toggle("other", is));
  }

  drawArcs(what, weights) {
    const cells = what ? this.cellsOf(what.token, weights) : this.strongest();
    const drawn = cells.filter(({key, weight}) => !(this.noSink.checked && key === 0) && this.scale(weight) >= LEAST_SHOWN);
    this.lines.replaceChildren(...drawn.reverse().map(({query, key, weight}) => {  // the strongest lies on top
      const part = this.scale(weight), chosen = what?.other === (this.direction.value === "from" ? key : query);
      const path = svg("path", {
        d: this.curve(query, key), "stroke-width": (0.8 + 6 * part).toFixed(2),
        "stroke-opacity": (what ? 0.15 + 0.85 * part : 0.08 + 0.42 * part).toFixed(3), class: chosen ? "chosen" : "",
      });
      Object.assign(path.dataset, {query, key, weight});
      return path;
    }));
  }

  // Descending, as the two below
  cellsOf(token, weights) {
    const from = this.direction.value === "from";
    const cells = (weights ?? []).map((weight, index) => ({query: from ? token : index, key: from ? index : token, weight}));
    return descending(cells.filter(cell => cell.weight !== null));
  }

  // The strongest weight of every row but the first token's, which has nothing else to attend to
  strongest() {
    const cells = this.map.rows.map((query, row) => {
      let best = null;
      for (let key = this.noSink.checked ? 1 : 0; key <= query; key++) {
        const weight = this.weight(row, key);
        if (weight !== null && (best === null || weight > best.weight)) best = {query, key, weight};
      }
      return best;
    });
    return descending(cells.filter(cell => cell?.query)).slice(0, MOST_FAINT);
  }

  placeCursor(what) {
    const {axis, rows} = this.map, {cursor} = this, cell = what && this.cell(what);
    cursor.hidden = !cell || (cell.row === null && cell.key === null);
    if (cursor.hidden) return;
    const percent = (part, whole) => `${100 * part / whole}%`;
    Object.assign(cursor.style, {
      left: percent(cell.key ?? 0, axis.length), width: percent(cell.key === null ? axis.length : 1, axis.length),
      top: percent(cell.row ?? 0, rows.length), height: percent(cell.row === null ? rows.length : 1, rows.length),
    });
  }

  // Row and key of the heat map that are pointed at, null for all of them
  cell({token, other = null}) {
    const [query, key] = this.direction.value === "from" ? [token, other] : [other, token];
    const row = query === null ? -1 : this.map.rows.indexOf(query);
    return {row: row < 0 ? null : row, key};
  }

  told({token, other = null}, weights) {
    const {axis, scores} = this.map, from = this.direction.value === "from";
    const start = element("b", {}, element("bdi", {textContent: axis[token].label}));
    if (!weights) return [start, ": this row was not asked for"];
    const cells = this.cellsOf(token, weights), end = cell => from ? cell.key : cell.query;
    const named = cells.filter(cell => end(cell) === other);
    const listed = [...named, ...cells.filter(cell => end(cell) !== other)].slice(0, MOST_LISTED);
    const verb = scores ? (from ? "scores" : "is scored by") : (from ? "attends to" : "is attended to by");
    return [start, ` (${token}) ${verb}`, this.list(listed, cell => [this.name(end(cell))])];
  }

  overview() {
    const cells = this.strongest().slice(0, MOST_LISTED);
    const pairs = this.list(cells, cell => [this.name(cell.query), " → ", this.name(cell.key)]);
    pairs.className = "pairs";
    return ["Strongest of all rows", pairs];
  }

  name(index) {
    return element("span", {}, element("bdi", {textContent: this.map.axis[index].label}), ` ${index}`);
  }

  list(cells, name) {
    return element("ol", {}, ...cells.map(cell => {
      const bar = element("i");
      bar.style.width = `${100 * this.scale(cell.weight)}%`;
      return element("li", {}, element("b", {}, ...name(cell)), bar,
        element("output", {textContent: format(cell.weight), title: String(cell.weight)}));
    }));
  }

  // --- pointing ---

  listen() {
    const {tokens, others, lines, heat, cells} = this;
    const onToken = act => event => { if (this.indexOf(event) >= 0) act({token: this.indexOf(event)}); };
    tokens.addEventListener("pointerover", onToken(what => this.look(what)));
    tokens.addEventListener("focusin", onToken(what => this.look(what)));
    tokens.addEventListener("click", onToken(what => this.keep(what)));
    tokens.addEventListener("keydown", event => this.moveToken(event));
    const onOther = act => event => {
      const other = [...others.children].indexOf(event.target), token = this.kept?.token ?? this.shown?.token;
      if (other >= 0 && token !== undefined) act({token, other});
    };
    others.addEventListener("pointerover", onOther(what => this.look(what)));
    const onArc = act => event => {
      const {query, key} = event.target.dataset;
      if (query === undefined) return act(null);
      const [token, other] = this.direction.value === "from" ? [query, key] : [key, query];
      act({token: Number(token), other: Number(other)});
    };
    lines.addEventListener("pointerover", onArc(what => this.look(what ?? this.kept)));
    lines.addEventListener("click", onArc(what => { if (what) this.keep(what); }));
    cells.addEventListener("pointermove", event => this.look(this.cellAt(event)));
    cells.addEventListener("click", event => this.keep(this.cellAt(event)));
    heat.addEventListener("focus", () => { if (heat.matches(":focus-visible")) this.look(this.firstCell()); });
    heat.addEventListener("keydown", event => this.moveCell(event));
    for (const part of [this.arcs, cells]) part.addEventListener("pointerleave", () => this.look(this.kept));
    for (const part of [this.arcs, heat]) part.addEventListener("focusout", () => this.look(this.kept));
    this.root.addEventListener("keydown", event => {
      if (event.key !== "Escape" || !this.kept) return;
      this.kept = null;
      this.look(null);
      this.onKeep(null);
    });
  }

  look(what) {
    if (!this.map || (what?.token === this.shown?.token && what?.other === this.shown?.other)) return;
    this.present(what);
    this.onPoint(what?.token ?? null);
  }

  keep(what) {
    const again = this.kept && this.kept.token === what.token && this.kept.other === what.other;
    this.kept = again ? null : what;
    this.present(this.kept);
    this.onPoint(this.kept?.token ?? null);
    this.onKeep(this.kept?.token ?? null);
  }

  // In the other direction
  again() {
    if (!this.map) return;
    this.turn();
    const token = (this.kept ?? this.shown)?.token;
    if (this.kept) this.kept = {token};
    this.present(token === undefined ? null : {token});
  }

  indexOf(event) {
    return [...this.tokens.children].indexOf(event.target);
  }

  moveToken(event) {
    const buttons = this.tokens.children, here = this.indexOf(event), next = here + 1, before = here - 1;
    const to = {ArrowRight: next, ArrowDown: next, ArrowLeft: before, ArrowUp: before, Home: 0, End: buttons.length - 1}[event.key];
    if (to === undefined || !buttons[to]) return;
    event.preventDefault();
    for (const button of buttons) button.tabIndex = -1;
    buttons[to].tabIndex = 0;
    buttons[to].focus();
  }

  cellAt(event) {
    const box = this.canvas.getBoundingClientRect(), {axis, rows} = this.map;
    const part = (value, size, count) => Math.min(count - 1, Math.max(0, Math.floor(value / size * count)));
    return this.what(part(event.clientY - box.top, box.height, rows.length), part(event.clientX - box.left, box.width, axis.length));
  }

  what(row, key) {
    const query = this.map.rows[row];
    return this.direction.value === "from" ? {token: query, other: key} : {token: key, other: query};
  }

  // Where the keyboard begins: what is shown, its other end the strongest
  firstCell() {
    const {token, other} = this.shown ?? {token: this.map.rows.at(-1)};
    if (other !== undefined) return this.shown;
    const [best] = this.cellsOf(token, this.weightsOf(token));
    return best ? this.what(this.map.rows.indexOf(best.query), best.key) : {token};
  }

  moveCell(event) {
    const {row, key} = this.cell(this.shown ?? this.firstCell()), {axis, rows} = this.map;
    const [down, right] = {ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1]}[event.key] ?? [0, 0];
    const to = {Home: [row ?? 0, 0], End: [row ?? 0, axis.length - 1]}[event.key] ?? [(row ?? 0) + down, (key ?? 0) + right];
    if (event.key === "Enter" || event.key === " ") this.keep(this.shown ?? this.firstCell());
    else if ((down || right || event.key === "Home" || event.key === "End") && rows[to[0]] !== undefined && axis[to[1]]) {
      this.look(this.what(...to));
    } else return;
    event.preventDefault();
  }
}

const descending = cells => cells.sort((a, b) => b.weight - a.weight || a.key - b.key || a.query - b.query);

// The scale's ends: from 0, or from below
function range({rows, weights}) {
  let low = 0, high = -Infinity;
  rows.forEach((query, row) => {
    for (let key = 0; key <= query; key++) {
      const weight = weights[row][key];
      if (!Number.isFinite(weight)) continue;
      if (weight < low) low = weight;
      if (weight > high) high = weight;
    }
  });
  return [low, high];
}

function above(from, to, width, height) {
  if (from === to) return `M${from - 4} ${height}C${from - 13} ${height - 26} ${from + 13} ${height - 26} ${from + 4} ${height}`;
  const top = height - 4 / 3 * (14 + (height - 22) * Math.sqrt(Math.abs(from - to) / width));  // of the control points; the arc reaches 3/4
  return `M${from} ${height}C${from} ${top} ${to} ${top} ${to} ${height}`;
}

// Only what changes: there may be hundreds of nodes
function mark(node, part, weight) {
  if (node.style.getPropertyValue("--part") !== part) node.style.setProperty("--part", part);
  if ((node.dataset.weight ?? "") !== weight) node.dataset.weight = weight;
}

function size(node, width, height) {
  node.style.width = width === null ? "" : `${width}px`;
  node.style.height = `${height}px`;
}

function choice(names, onchange) {
  const select = element("select", {onchange});
  fill(select, Object.keys(names), name => names[name]);
  return select;
}
