// NumPy's archives, as the service writes them: a zip file of arrays that are not compressed

const DIRECTORY_END = 0x06054b50, DIRECTORY_ENTRY = 0x02014b50;
const TYPES = {"<f4": Float32Array, "<i8": BigInt64Array, "|S": Uint8Array};

// {name: {shape, values}} of an ArrayBuffer; arrays of another type than those above are left out
export function readNpz(buffer) {
  const view = new DataView(buffer), arrays = {};
  const end = buffer.byteLength - 22;  // no comment follows
  if (end < 0 || view.getUint32(end, true) !== DIRECTORY_END) throw new Error("not an archive of ours");
  let place = view.getUint32(end + 16, true);
  for (let left = view.getUint16(end + 10, true); left; left--) {
    const compressed = view.getUint16(place + 10, true) !== 0;
    if (view.getUint32(place, true) !== DIRECTORY_ENTRY || compressed) throw new Error("not an archive of ours");
    const [name, extra, comment] = [28, 30, 32].map(offset => view.getUint16(place + offset, true));
    const local = view.getUint32(place + 42, true), size = view.getUint32(place + 24, true);
    const start = local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
    const file = text(buffer, place + 46, name).replace(/\.npy$/, "");
    const array = readNpy(buffer.slice(start, start + size));
    if (array) arrays[file] = array;
    place += 46 + name + extra + comment;
  }
  return arrays;
}

function readNpy(buffer) {
  const length = new DataView(buffer).getUint16(8, true), header = text(buffer, 10, length);
  const Type = TYPES[/'descr': '([<|](?:f4|i8|S))/.exec(header)?.[1]];
  if (!Type) return null;
  const shape = /'shape': \(([^)]*)\)/.exec(header)[1].split(",").filter(one => one.trim()).map(Number);
  return {shape, values: new Type(buffer, 10 + length)};  // which NumPy aligns to 64 bytes
}

const text = (buffer, start, length) => new TextDecoder().decode(new Uint8Array(buffer, start, length));
