// The way of a flow's packets: the lines of the picture, and sentences about what was decided for the flow, and why.
import { html } from "./libraries.js";
import { bytes, count, list, plural } from "./units.js";
import { buffers, direct, flowKey, gpuOf, hintsOf, nicOf, total } from "./model.js";
import { center, middle, route } from "./layout.js";

// lines returns what Picture draws of a flow: lines {kind: "payload" or "header", points}, notes at nodes, and drops.
export function lines(page, places, f) {
  const out = { lines: [], notes: [], drops: [] };
  for (const s of f.tx ?? []) {
    side(out, page, places, s, "leaves");
  }
  for (const s of f.rx ?? []) {
    side(out, page, places, s, "arrives");
  }
  cross(out, places, f);
  return out;
}

// side draws what happens between a NIC and the memories of its machine.
function side(out, page, places, s, way) {
  const nic = places.nodes.get(`nic ${s.port}`);
  if (!nic) {
    return;
  }
  const t = total([s]);
  const memory = hostMemory(places, nic);
  const gpu = gpuOf(page, s.port);
  const device = gpu && places.nodes.get(`gpu ${gpu.name}`);
  const ends = (a, b) => (way === "leaves" ? [a, b] : [b, a]);
  const draw = (kind, a, b) => out.lines.push({ kind, points: route(places, ...ends(a, b)) });
  if (memory) {
    draw("header", memory, nic);
    if (t.host > 0) {
      draw("payload", memory, nic);
    }
    out.notes.push({ node: memory, text: t.host > 0 ? `payload ${bytes(t.host)}` : `headers ${bytes(t.header)}` });
  }
  if (device && t.gpu > 0) {
    if (memory && (t.bounced > 0 || !direct(page, s.port, gpu))) {
      draw("payload", device, memory);
      draw("payload", memory, nic);
    } else {
      draw("payload", device, nic);
    }
    out.notes.push({ node: device, text: `payload ${bytes(t.gpu)}` });
  }
  const rule = way === "leaves" ? "" : s.rule ? `, rule ${s.rule}` : ", RSS";
  out.notes.push({ node: nic, text: `queue ${s.queues[0]}${rule}` }); // the busiest
}

// hostMemory returns the node of the memory of a node's socket.
function hostMemory(places, node) {
  let at = node;
  while (at && at.kind !== "socket") {
    at = places.nodes.get(at.below);
  }
  return at && places.nodes.get(`${at.id} memory`);
}

// cross draws a flow's way over the switch, and the places where packets were dropped on that way.
function cross(out, places, f) {
  const sw = places.nodes.get("switch");
  const down = (n) => [middle(n), [center(n), sw.y + sw.height / 2]];
  const at = (s) => places.nodes.get(`nic ${s.port}`);
  const from = (f.tx ?? []).map(at).filter(Boolean);
  const to = (f.rx ?? []).map(at).filter(Boolean);
  const way = [...places.nodes.values()].filter((n) => n.kind === "uplink" || n.kind === "host");
  if (to.length === 0 && way.length === 1) {
    to.push(way[0]);
  }
  if (from.length === 0 && way.length === 1) {
    from.push(way[0]);
  }
  const y = sw.y + sw.height / 2;
  for (const a of from) {
    for (const b of to) {
      out.lines.push({ kind: "payload", points: [...down(a), ...down(b).reverse()] });
      out.lines.push({ kind: "header", points: [...down(a), ...down(b).reverse()] });
    }
    if (to.length === 0) {
      out.lines.push({ kind: "payload", points: down(a) });
    }
  }
  for (const [reason, n] of Object.entries(total(f.tx).drops)) {
    drop(out, places, atSender.test(reason) ? from[0] : to[0] ?? from[0], reason, n);
  }
  for (const [reason, n] of Object.entries(total(f.rx).drops)) {
    drop(out, places, to[0], reason, n);
  }
}

// atSender matches the reasons of drops at the sender's link. All other drops are at the receiver or on the way to it.
const atSender = /^link-/;

function drop(out, places, node, reason, n) {
  if (!node) {
    return;
  }
  const before = out.drops.filter((d) => d.x === center(node)).length;
  out.drops.push({ x: center(node), y: node.y + node.height + 24 + 18 * before, left: center(node) > places.width / 2,
    text: `${plural(n, "packet", "packets")} dropped: ${reason}` });
}

// steps returns sentences about what was decided for a flow, from the sender to the receiver.
export function steps(page, f) {
  const open = f.state === "open";
  return [...(f.tx ?? []).map((s) => sent(page, s)), ...between(f),
    ...(f.rx ?? []).flatMap((s) => received(page, s, open))];
}

function machineOf(page, port) {
  return nicOf(page, port)?.machine.name ?? "this machine";
}

function where(page, s, verb) {
  const t = total([s]);
  const gpu = gpuOf(page, s.port);
  const parts = [];
  if (t.gpu > 0) {
    parts.push(`${bytes(t.gpu)} of payload ${verb} GPU memory${gpu ? ` (${gpu.name})` : ""}`);
  }
  if (t.host > 0) {
    parts.push(`${bytes(t.host)} of payload ${verb} host memory`);
  }
  if (parts.length === 0) {
    parts.push("it has no payload");
  }
  return `${list(parts)}; ${bytes(t.header)} of headers ${verb} host memory`;
}

function sent(page, s) {
  return { title: `${machineOf(page, s.port)} sends`,
    text: `NIC ${s.port} takes ${plural(s.packets, "packet", "packets")} from transmit queue ${list(s.queues)}: ` +
      `${where(page, s, "lay in")}.` };
}

function between(f) {
  const tx = total(f.tx);
  const rx = total(f.rx);
  const out = [];
  for (const [reason, n] of Object.entries(tx.drops)) {
    out.push({ title: "Dropped", bad: true, text: `${plural(n, "packet", "packets")}: ${reason}.` });
  }
  const again = Math.max(tx.again, rx.again);
  if (again > 0) {
    out.push({ title: "Sent again", bad: true,
      text: `${bytes(again)} were below the highest sequence number: sent again, or overtaken.` });
  }
  if (f.tx?.length && f.rx?.length) {
    out.push({ title: "The switch", text: `leads it from ${list(f.tx.map((s) => s.port))} to ` +
      `${list(f.rx.map((s) => s.port))}, by the destination's MAC address.` });
  } else if (f.tx?.length) {
    out.push({ title: "The switch", text: "leads it to no guest: to the gateway, an uplink, or nobody." });
  } else {
    out.push({ title: "The switch", text: "has it from no guest: from the gateway or an uplink." });
  }
  return out;
}

function received(page, s, open) {
  const bound = s.bound ?? [];
  const isBound = s.queues.filter((q) => bound.includes(q));
  const [queue, ...others] = s.queues; // the busiest first
  const before = others.length === 0 ? "" : ` Some of it came by queue ${list(others)}.`;
  const out = [{ title: `NIC ${s.port} chooses a queue`, text: s.rule
    ? `Flow rule ${s.rule} leads it to receive queue ${queue}.${before}`
    : `No flow rule is for it: RSS, the hash of addresses and ports, leads it to receive queue ${queue}.${before}` }];
  const t = total([s]);
  let why;
  if (bound.length === 0) {
    why = "No queue of this NIC is bound to GPU memory, so all goes to host memory";
  } else if (isBound.length === 0) {
    why = `Queue ${queue} is not bound to GPU memory (bound is queue ${list(bound)}), so all goes to host memory`;
  } else if (t.bounced > 0) {
    why = `Queue ${list(isBound)} is bound to GPU memory, but NIC and GPU have no peer to peer, so payload goes by ` +
      "host memory";
  } else {
    why = `Queue ${list(isBound)} is bound to GPU memory: the NIC splits headers off`;
  }
  out.push({ title: `${machineOf(page, s.port)} receives`, text: `${why}: ${where(page, s, "came to")}.` });
  for (const [reason, n] of Object.entries(s.drops ?? {})) {
    out.push({ title: "Dropped at the receiver", bad: true, text: `${plural(n, "packet", "packets")}: ${reason}.` });
  }
  const have = open && isBound.length ? buffers(page, s.port, isBound) : null;
  if (have) {
    out.push({ title: "Buffers", bad: have.posted === 0, text: have.posted === 0
      ? `None is posted: the receiver has at least ${bytes(have.held)}, and nothing can come until it returns tokens.`
      : `${bytes(have.posted)} are posted; ${bytes(have.held)} were: the receiver holds them, or its pool has them.` });
  }
  if (open && s.tokens_held !== undefined) {
    out.push({ title: "Tokens", text: `The guest's stack says: this connection holds ` +
      `${plural(s.tokens_held, "token", "tokens")} that it has not returned.` });
  }
  return out;
}

// Way is the panel of the selected flow.
export function Way({ page, flow }) {
  if (!flow) {
    return html`<p class="quiet">Select a flow in the table: its way is drawn above, and said here.</p>`;
  }
  const hints = hintsOf(page, flow);
  return html`<div id="way">
    <h3>${flow.proto} ${flow.from} <span aria-label="to">→</span> ${flow.to}</h3>
    ${hints.map((h) => html`<p class="hint" key=${h}>${h}</p>`)}
    <ol>${steps(page, flow).map((s, i) => html`<li key=${i} class=${s.bad ? "bad" : ""}>
      <strong>${s.title}</strong> <span>${s.text}</span></li>`)}</ol>
    <p class="quiet">${flowState(flow)}</p>
  </div>`;
}

function flowState(f) {
  return f.state ? `The connection is ${f.state}. ${count(total(f.rx).packets)} packets have arrived.` : "";
}
