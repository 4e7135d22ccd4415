// Attention maps, the NPZ answer of POST /v1/attention for one text: exact, and of all heads at once

import {visible} from "./common.js";
import {nameOf} from "./grid.js";
import {readNpz} from "./npz.js";

export class Maps {
  constructor(buffer) {
    const arrays = readNpz(buffer), metadata = JSON.parse(new TextDecoder().decode(arrays.metadata.values));
    const [result] = metadata.results, numbers = name => Array.from(arrays[name].values, Number);
    this.warnings = result.warnings;
    const axis = result.unit === "word" ? result.words : result.tokens;
    this.axis = axis.map(({text, segment}) => ({label: visible(text), segment}));
    this.rows = numbers("queries_0");
    this.weights = arrays.weights_0.values;
    const heads = numbers("heads_0");
    this.names = numbers("layers_0").flatMap(layer => heads.map(head => nameOf({layer, head})));
  }

  // All weights of a head, row after row
  flat(name) {
    const size = this.rows.length * this.axis.length, start = this.names.indexOf(name) * size;
    return this.weights.subarray(start, start + size);
  }

  // As MapView wants it
  of(name) {
    const {axis, rows} = this, flat = this.flat(name), width = axis.length;
    return {name, axis, rows, weights: rows.map((_, row) => flat.subarray(row * width, (row + 1) * width))};
  }
}
