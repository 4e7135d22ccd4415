"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const at = id => document.getElementById(id);

function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

function fill(select, values, name = String) {
  const before = select.value;
  select.replaceChildren(...values.map(value => element("option", {value, textContent: name(value)})));
  if (values.map(String).includes(before)) select.value = before;
}

const unique = values => [...new Set(values)];
const format = weight => Math.abs(weight) >= 0.001 || weight === 0 ? weight.toFixed(3) : weight.toExponential(0);

// Which weights: for a footer
const provenance = ({id, revision, variant, quantization, dtype}) => [id, revision, variant, quantization, dtype].filter(Boolean).join(" · ");
