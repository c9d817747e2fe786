// Functions that format numbers for people.
const binary = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const decimal = ["", "k", "M", "G", "T", "P"];

function scaled(n, by, names) {
  let i = 0;
  while (n >= by && i < names.length - 1) {
    n /= by;
    i++;
  }
  return [i === 0 || n >= 100 ? Math.round(n).toString() : n.toFixed(1), names[i]];
}

// bytes formats a number of bytes, in powers of 1024.
export function bytes(n) {
  return scaled(n, 1024, binary).join(" ");
}

// bits formats a rate in bytes a second as bits a second.
export function bits(n) {
  const [text, unit] = scaled(n * 8, 1000, decimal);
  return `${text} ${unit}bit/s`;
}

export function count(n) {
  return n.toLocaleString("en-US");
}

export function percent(part) {
  return part > 0 && part < 0.01 ? "<1 %" : `${Math.round(part * 100)} %`;
}

export function plural(n, one, many) {
  return `${count(n)} ${n === 1 ? one : many}`;
}

// list joins words: "a", "a and b", "a, b and c".
export function list(words) {
  const all = words.map(String);
  return all.length < 2 ? all.join("") : `${all.slice(0, -1).join(", ")} and ${all[all.length - 1]}`;
}

export function seconds(t) {
  return t < 100 ? `${t.toFixed(2)} s` : `${Math.round(t)} s`;
}
