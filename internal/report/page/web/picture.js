// The picture of the lab, as SVG.
import { html, useEffect, useMemo, useRef, useState } from "./libraries.js";
import { bits, bytes, percent } from "./units.js";
import { layout } from "./layout.js";
import { lines } from "./way.js";

// smallest returns the smallest scale of the picture; if the picture is still too wide, the user scrolls. On a narrow
// screen the scale is larger, because everything is small there already.
const smallest = (width) => (width > 900 ? 0.55 : 0.72);

function path(points, shift = 0) {
  return points.map(([x, y], i) => `${i ? "L" : "M"}${x + shift} ${y + shift}`).join("");
}

// shape returns a text that describes the hardware: the layout is made anew only when the text changes.
function shape(page) {
  return JSON.stringify([page.machines.map((m) => [m.name, m.tree, m.nics.map((n) => [n.name, n.place]), m.gpus]),
    page.ports.map((p) => [p.name, p.kind])]);
}

export function Picture({ page, loads, flow }) {
  const shaped = shape(page);
  const places = useMemo(() => layout(page), [shaped]);
  const box = useRef(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const watch = new ResizeObserver((entries) => setWidth(entries[0].contentRect.width));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  if (page.machines.length === 0) {
    return html`<div class="picture" ref=${box}><p class="quiet">There is no lab at the moment.</p></div>`;
  }
  const scale = Math.min(1.35, Math.max(smallest(width), (width || places.width) / places.width));
  const way = flow ? lines(page, places, flow) : null;
  return html`<div class="picture" ref=${box} tabindex=${width && width < places.width * scale - 1 ? 0 : undefined}
      role="group" aria-label="Picture of the lab">
    <svg width=${places.width * scale} height=${places.height * scale}
        viewBox=${`0 0 ${places.width} ${places.height}`} role="img" aria-label=${said(page)}>
      ${places.frames.map((f) => html`<g key=${`frame ${f.name}`}>
        <rect class="frame" x=${f.x} y=${f.y} width=${f.width} height=${f.height} rx="8" />
        <text class="title" x=${f.x + 10} y=${f.y + 18}>${f.name}</text></g>`)}
      ${places.edges.map((e, i) => html`<${Edge} key=${i} edge=${e} loads=${loads} />`)}
      <${Node} node=${places.nodes.get("switch")} />
      ${way && html`<g id="drawn-lines">${way.lines.map((l, i) => html`<path key=${i} class=${`way ${l.kind}`}
        d=${path(l.points, l.kind === "header" ? 4 : -2)} />`)}</g>`}
      ${[...new Set(places.nodes.values())].filter((n) => n.kind !== "bridge").map((n) =>
        html`<${Node} key=${`${n.machine?.name} ${n.id}`} node=${n} />`)}
      ${way && html`<${Notes} way=${way} />`}
    </svg>
  </div>`;
}

// said returns a description of the picture in words.
function said(page) {
  const names = (items) => items.map((x) => x.name).join(", ") || "none";
  const machines = page.machines.map((m) => `${m.name}, its NICs: ${names(m.nics)}, its GPUs: ${names(m.gpus)}`);
  return `The lab: ${machines.join("; ")}; on one switch.`;
}

// loaded returns a link's CSS class, by how busy the link is.
function loaded(l) {
  return ["idle", "low", "middle", "high"][!l || l.rate <= 0 ? 0 : l.busy < 0.5 ? 1 : l.busy < 0.85 ? 2 : 3];
}

function Edge({ edge, loads }) {
  const of = edge.links.map((name) => [name, loads.get(name)]);
  const most = of.reduce((m, [, l]) => (l && (!m || l.rate > m.rate) ? l : m), null);
  const thick = most && most.rate > 0 ? 2 + Math.min(5, Math.max(0, Math.log10(most.rate / 1e5))) : 1.5;
  const words = (l) => (l ? `${bits(l.rate)}, taken ${percent(l.busy)}` : "nothing");
  const title = of.map(([name, l]) => `${name}: ${words(l)}`).join("\n");
  return html`<g class="edge">
    <path class=${`link ${loaded(most)}`} d=${path(edge.points)} stroke-width=${thick}><title>${title}</title></path>
    ${edge.leaf && most && most.rate >= 1e3 && html`<${Rates} edge=${edge} of=${of} />`}
  </g>`;
}

// Rates writes the rates of both directions beside a link.
function Rates({ edge, of }) {
  const n = edge.leaf;
  const text = (l, arrow) => `${arrow}${bits(l.rate).replace("bit/s", "b/s")}`;
  const shown = of.map(([, l], i) => l && l.rate >= 1e3 && text(l, of.length === 1 ? "" : "▲▼"[i])).filter(Boolean);
  return html`<g>${shown.map((text, i) => html`<text key=${i} class="rate" x=${n.x + n.width / 2 + 5}
    y=${n.y - 6 - 11 * (shown.length - 1 - i)}>${text}</text>`)}</g>`;
}

function Node({ node }) {
  if (node.kind === "bridge") {
    return html`<g class="node bridge"><rect x=${node.x} y=${node.y} width=${node.width} height=${node.height} rx="5" />
      <text class="start" x=${node.x + 8} y=${node.y + 19}>switch</text></g>`;
  }
  const lines = [node.label ?? node.id];
  if (node.kind === "nic") {
    lines[0] = node.item.name;
    lines.push(node.item.addrs[0]?.split("/")[0] ?? node.item.model);
  } else if (node.kind === "gpu") {
    lines[0] = node.item?.name ?? node.label;
    lines.push(`GPU, ${bytes(node.item.bytes)}`);
  } else if (node.kind === "host") {
    lines.push("this machine");
  } else if (node.kind === "uplink") {
    lines.push("uplink");
  }
  const y = node.y + node.height / 2 - (lines.length - 1) * 6 + 4;
  return html`<g class=${`node ${node.kind}`} data-node=${node.id}>
    <rect x=${node.x} y=${node.y} width=${node.width} height=${node.height} rx="5" />
    ${node.kind === "nic" && html`<title>${node.item.model}, ${node.item.mac}, MTU ${node.item.mtu}: ${
      node.item.addrs.join(", ")}</title>`}
    ${lines.map((text, i) => html`<text key=${i} class=${i ? "small" : ""} x=${node.x + node.width / 2} y=${y + 13 * i}
      textLength=${text.length * (i ? 5.2 : 6.6) > node.width - 4 ? node.width - 6 : undefined}
      lengthAdjust="spacingAndGlyphs">${text}</text>`)}
  </g>`;
}

// Notes writes at each node what happens there to the selected flow.
function Notes({ way }) {
  return html`<g id="drawn">
    ${way.notes.map(({ node, text }, i) => html`<g key=${`note ${i}`} class="note">
      <rect x=${node.x - 3} y=${node.y + node.height - 1} width=${node.width + 6} height="14" rx="3" />
      <text x=${node.x + node.width / 2} y=${node.y + node.height + 9}
        textLength=${text.length * 5.4 > node.width + 2 ? node.width + 2 : undefined}
        lengthAdjust="spacingAndGlyphs">${text}</text></g>`)}
    ${way.drops.map((d, i) => html`<g key=${`drop ${i}`} class="dropped" transform=${`translate(${d.x} ${d.y})`}>
      <circle r="8" /><path d="M-4 -4L4 4M4 -4L-4 4" />
      <text class=${d.left ? "end" : "start"} x=${d.left ? -13 : 13} y="4">${d.text}</text></g>`)}
  </g>`;
}
