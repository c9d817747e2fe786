// GPUs' memory as maps of equal cells, with the same in words.
import { html, useEffect, useRef } from "./libraries.js";
import { bytes, percent, seconds } from "./units.js";

const across = 64; // cells
const cell = 7; // pixels
const words = { posted: "posted: the NIC may write it", held: "held: it was posted, and is not now",
  send: "bound for transmit", other: "other uses" };

// Memory shows the maps. at is the time of the maps, in seconds; undefined: now.
export function Memory({ maps, at }) {
  const used = maps.filter((m) => m.uses.length > 0);
  const free = maps.filter((m) => m.uses.length === 0);
  const names = free.map((m) => `${m.gpu} (${bytes(m.bytes)})`).join(", ");
  const rest = free.length > 0 && html`<p class="quiet">Free: ${names}.</p>`;
  if (used.length === 0) {
    return html`<p class="quiet">No NIC uses memory of a GPU.</p>${rest}`;
  }
  return html`${at !== undefined && html`<p class="quiet">As it was at ${seconds(at)}, when NICs last used any.</p>`}
    <div class="maps">${used.map((m) => html`<${MemoryMap} key=${m.gpu} map=${m} />`)}</div>${rest}
    <p class="legend" aria-hidden="true">${["posted", "held", "send", "free"].map((s) => html`<span key=${s}>
      <i class=${`key ${s}`}></i> ${s === "send" ? "bound for transmit" : s}</span>`)}</p>`;
}

function MemoryMap({ map }) {
  const canvas = useRef(null);
  const cells = Math.ceil(map.bytes / map.cell_bytes);
  const rows = Math.ceil(cells / across);
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  useEffect(() => {
    const c = canvas.current;
    const ratio = devicePixelRatio || 1;
    c.width = across * cell * ratio;
    c.height = rows * cell * ratio;
    const draw = c.getContext("2d");
    const style = getComputedStyle(c);
    const colour = (state) => style.getPropertyValue(`--memory-${state}`);
    draw.scale(ratio, ratio);
    const paint = (i, state) => {
      const [x, y] = [i % across * cell, Math.floor(i / across) * cell];
      draw.fillStyle = colour(state);
      draw.fillRect(x, y, cell - 1, cell - 1);
      if (state === "held") { // also without colours
        draw.fillStyle = colour("mark");
        draw.fillRect(x + 2, y + 2, cell - 5, cell - 5);
      }
    };
    for (let i = 0; i < cells; i++) {
      paint(i, "free");
    }
    for (const [first, n, use] of map.runs) {
      for (let i = first; i < first + n; i++) {
        paint(i, map.uses[use].state);
      }
    }
  });
  const free = map.bytes - map.uses.reduce((n, u) => n + u.bytes, 0);
  return html`<figure class="map" key=${dark}>
    <figcaption>${map.gpu}, ${bytes(map.bytes)}; a cell is ${bytes(map.cell_bytes)}</figcaption>
    <canvas ref=${canvas} role="img" aria-label=${`Map of the memory of ${map.gpu}; the table has the same`}></canvas>
    <table aria-label=${`Memory of ${map.gpu}`}><tbody>
      ${map.uses.map((u, i) => html`<tr key=${i}><td><i class=${`key ${u.state}`}></i></td>
        <td class="text">${use(u)}</td><td>${bytes(u.bytes)}</td><td>${percent(u.bytes / map.bytes)}</td></tr>`)}
      <tr><td><i class="key free"></i></td><td class="text">free</td><td>${bytes(free)}</td>
        <td>${percent(free / map.bytes)}</td></tr>
    </tbody></table>
  </figure>`;
}

function use(u) {
  const queue = u.queue >= 0 ? ` queue ${u.queue}` : "";
  const binding = u.binding ? ` (binding ${u.binding})` : "";
  return `${u.port ? `${u.port}${queue}, ` : ""}${words[u.state] ?? u.state}${binding}`;
}
