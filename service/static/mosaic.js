// The mosaic: the grid of all heads, coloured by their labels or a score, with a small map in each cell

import {element, fill} from "./common.js";
import {HeadGrid, titleOf} from "./grid.js";
import {emptyLegend, SINGLED_OUT, UNITS} from "./scores.js";

const LEVELS = 256;
const MEASURES = ["label", ...Object.keys(UNITS).filter(name => name !== "custom")];
const HINT = "Point at a head, or move with the arrow keys; click or Enter keeps it, Escape goes back to the kept one. " +
  "Press a label to see only its heads.";
const SMALL_MAPS = "In each cell: its map, queries down, keys across, with more ink for more weight (square root); " +
  "the colour stands where no token can look, ahead.";

export class Mosaic {
  // `onShow`: see HeadGrid. `onColor({by, kind, only})` is called when the user chooses other colours
  constructor(root, {layers, heads, onShow, onColor}) {
    Object.assign(this, {scores: null, maps: null, wanted: null, drawn: 0});
    this.shown = {by: "label", kind: "score", only: null};  // see Scores
    const change = changes => onColor({...this.shown, ...changes});
    const ariaLabel = "Labels: press one to see only its heads";
    this.legend = element("div", {className: "legend", role: "group", ariaLabel});
    this.legend.addEventListener("click", event => {
      const label = event.target.closest("button")?.value;
      if (label) change({only: label === this.shown.only ? null : label});
    });
    this.legend.append(...emptyLegend());
    this.by = element("select", {onchange: () => change({by: this.by.value})});
    fill(this.by, MEASURES);
    this.kind = element("select", {onchange: () => change({kind: this.kind.value})});
    fill(this.kind, ["score", "excess"]);
    this.kindChoice = element("label", {}, "Show ", this.kind);
    this.scale = element("div", {className: "scale"});
    this.hint = element("p", {className: "hint"});
    const table = element("table");
    this.grid = new HeadGrid(table, {layers, heads, sticky: true, onShow});
    root.replaceChildren(this.legend,
      element("div", {className: "controls"}, element("label", {}, "Colour by ", this.by), this.kindChoice, this.scale),
      element("div", {className: "scroller"}, table), this.hint);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw(this.wanted));
    this.paint();
  }

  // An address may name a score or a label that there is not
  color({by, kind, only}) {
    this.shown = {by: MEASURES.includes(by) ? by : "label", kind, only: SINGLED_OUT.includes(only) ? only : null};
    this.by.value = this.shown.by;
    this.kind.value = kind;
    this.kindChoice.hidden = this.shown.by === "label" || this.shown.by === "entropy";
    this.paint();
  }

  // The scores of the text's heads; null while there are none
  fill(scores) {
    this.scores = scores;
    this.legend.replaceChildren(...scores?.legend() ?? emptyLegend());
    this.scale.replaceChildren();
    this.paint();
  }

  paint() {
    const {grid, scores, maps, shown} = this;
    this.hint.textContent = `${HINT} ${maps ? SMALL_MAPS : ""}`;
    if (!scores) return grid.paint(blank);
    for (const button of this.legend.children) button.ariaPressed = String(button.value === shown.only);
    grid.paint(cell => scores.paint(cell, shown, maps ? wedges : undefined));
    this.scale.replaceChildren(...scores.scale(grid.cells, shown));
  }

  // The small maps; null where there are none of all heads. One image for all: a canvas in each cell would be a layer each,
  // which a browser takes longer to stack than a frame has
  async draw(maps) {
    const {grid} = this, {style} = grid.table, mine = ++this.drawn;
    this.wanted = maps;
    const atlas = maps && drawAtlas(grid, maps), image = maps && await new Promise(resolve => atlas.toBlob(resolve));
    if (mine !== this.drawn) return;  // another text's, or another palette's, overtook it
    this.maps = image && maps;  // a browser may have no room for the image: then without
    if (image) {
      const [wide, high] = [grid.rows[0].length, grid.rows.length], width = maps.axis.length, height = maps.rows.length;
      URL.revokeObjectURL(this.url);
      this.url = URL.createObjectURL(image);
      style.setProperty("--atlas", `url("${this.url}")`);
      style.setProperty("--atlas-size", `${100 * atlas.width / width}% ${100 * atlas.height / height}%`);
      // As CSS has it: the share of what the image is larger than the cell
      const share = (place, count, size) => `${100 * (place * (size + 2) + 1) / (count * (size + 2) - size)}%`;
      grid.paint(({x, y, node}) => {
        const map = node.firstChild ?? node.appendChild(element("i"));
        map.style.backgroundPosition = `${share(x, wide, width)} ${share(y, high, height)}`;
      });
      grid.table.classList.toggle("coarse", width < 24);
    } else grid.paint(({node}) => node.replaceChildren());
    this.paint();
  }
}

// All maps as they stand in the grid, a pixel free around each
function drawAtlas(grid, maps) {
  const width = maps.axis.length, height = maps.rows.length, palette = inks();
  const picture = new ImageData(width, height), pixels = new Uint32Array(picture.data.buffer);
  const canvas = element("canvas", {width: grid.rows[0].length * (width + 2), height: grid.rows.length * (height + 2)});
  const context = canvas.getContext("2d", {willReadFrequently: true});
  grid.paint(({x, y, name}) => {
    shade(pixels, maps.flat(name), maps.rows, width, palette);
    context.putImageData(picture, x * (width + 2) + 1, y * (height + 2) + 1);
  });
  return canvas;
}

function blank(cell) {
  const {node} = cell;
  node.style.backgroundImage = "";
  node.classList.remove("missing", "outlined", "borderline", "dim");
  node.ariaLabel = titleOf(cell);
}

// Square roots, or all but the strongest weights would be white; what lies ahead stays transparent
function shade(pixels, weights, rows, width, palette) {
  let most = 0;
  for (let place = 0; place < weights.length; place++) if (weights[place] > most) most = weights[place];
  const factor = most > 0 ? 1 / most : 0;
  rows.forEach((query, row) => {
    for (let key = 0, place = row * width; key < width; key++, place++) {
      pixels[place] = key > query ? 0 : palette[Math.floor((LEVELS - 1) * Math.sqrt(Math.max(0, weights[place] || 0) * factor))];
    }
  });
}

// From paper to ink, as pixels
function inks() {
  const style = getComputedStyle(document.body), channels = color => color.match(/[\d.]+/g).slice(0, 3).map(Number);
  const paper = channels(style.backgroundColor), ink = channels(style.color);
  const bytes = new Uint8ClampedArray(4 * LEVELS);
  for (let level = 0; level < LEVELS; level++) {
    bytes.set([...paper.map((from, i) => from + level / (LEVELS - 1) * (ink[i] - from)), 255], 4 * level);
  }
  return new Uint32Array(bytes.buffer);
}

// Several labels in the half of the cell that a causal map leaves free
function wedges(colors) {
  const angle = 90 / colors.length, stops = colors.map((color, i) => `${color} ${i * angle}deg ${(i + 1) * angle}deg`);
  return stops.length ? `conic-gradient(from 180deg at 100% 0, ${stops.join()})` : "";
}
