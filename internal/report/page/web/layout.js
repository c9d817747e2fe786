// Positions in the picture of the lab: machines side by side, each with its PCIe tree; below them the switch; below it
// the ports that are no guests'. Lengths are in units of the SVG.
const wide = 96; // width of a leaf of a tree
const narrow = 72; // width of a leaf in a lab with more than many leaves
const many = 9;
const nodeHeight = 36;
const level = 76;
const pad = 16;
const titleHeight = 26;

// layout returns the nodes by their id, the edges, a frame for each machine, and the size. An edge's links are names of
// page.links.
export function layout(page) {
  const out = { nodes: new Map(), edges: [], frames: [], width: 0, height: 0 };
  const trees = page.machines.map((m) => tree(m));
  const depth = Math.max(1, ...trees.map((t) => t.depth));
  const leafWidth = trees.reduce((n, t) => n + t.leaves, 0) > many ? narrow : wide;
  let x = pad;
  for (const t of trees) {
    const width = t.leaves * leafWidth + 2 * pad;
    const height = titleHeight + depth * level + nodeHeight + pad;
    out.frames.push({ name: t.machine.name, x, y: pad, width, height });
    place(out, t, x + pad, pad + titleHeight, depth, leafWidth);
    x += width + 2 * pad;
  }
  const bottom = pad + titleHeight + depth * level + nodeHeight + pad;
  outside(out, page, Math.max(x - pad, 320), bottom);
  return out;
}

// tree makes a machine's tree. If the lab describes no tree, all devices are below a node "host".
function tree(machine) {
  const nodes = new Map();
  const add = (id, kind, label, below) => nodes.set(id, { id, kind, label, below, children: [], machine });
  const of = (name) => `${machine.name}.${name}`;
  if (machine.tree.length === 0) {
    add(of(""), "socket", "host", null);
  }
  for (const n of machine.tree) {
    add(of(n.name), n.kind, n.name, n.below ? of(n.below) : null);
  }
  const root = [...nodes.values()].find((n) => !n.below).id;
  const fit = (kind, items) => {
    for (const item of items) {
      const id = of(item.place || item.name);
      if (!nodes.has(id)) {
        add(id, kind, item.name, root);
      }
      Object.assign(nodes.get(id), { item, kind });
    }
  };
  fit("nic", machine.nics);
  fit("gpu", machine.gpus);
  for (const n of [...nodes.values()].filter((n) => n.kind === "socket")) {
    add(`${n.id} memory`, "memory", "host memory", n.id);
  }
  for (const n of nodes.values()) {
    nodes.get(n.below)?.children.push(n);
  }
  const roots = [...nodes.values()].filter((n) => !n.below);
  const leaves = (n) => Math.max(1, n.children.reduce((sum, c) => sum + leaves(c), 0));
  const deep = (n) => (n.children.length === 0 ? 0 : 1 + Math.max(...n.children.map(deep)));
  return { machine, roots, leaves: roots.reduce((sum, r) => sum + leaves(r), 0), depth: Math.max(...roots.map(deep)) };
}

// place sets the nodes' positions: leaves at the bottom, each other node centred above its children.
function place(out, t, x, y, depth, leafWidth) {
  const put = (n, deep) => {
    const at = x;
    n.children.forEach((c) => put(c, deep + 1));
    if (n.children.length === 0) {
      x += leafWidth;
    }
    n.width = n.children.length === 0 ? leafWidth - 10 : Math.min(x - at, 2 * leafWidth) - 10;
    n.height = nodeHeight;
    n.x = (at + x) / 2 - n.width / 2;
    n.y = y + (n.children.length === 0 ? depth : deep) * level;
    out.nodes.set(n.item?.name && n.kind === "nic" ? `nic ${n.item.name}` : n.id, n);
    if (n.kind === "gpu") {
      out.nodes.set(`gpu ${n.item.name}`, n);
    }
  };
  t.roots.forEach((r) => put(r, 0));
  const edge = (n) => n.children.forEach((c) => {
    const links = c.kind === "memory" ? [c.id] : [`${c.id} up`, `${c.id} down`];
    out.edges.push({ points: elbow(n, c), leaf: c, links });
    edge(c);
  });
  t.roots.forEach(edge);
  t.roots.slice(1).forEach((r, i) => {
    const l = t.roots[i];
    out.edges.push({ points: [[l.x + l.width, l.y + 18], [r.x, r.y + 18]],
      links: [`${l.id} to ${r.label}`, `${r.id} to ${l.label}`] });
  });
}

// elbow returns the points of the line from a node to its child.
function elbow(above, below) {
  const middle = above.y + above.height + 12;
  const [x, to] = [center(above), center(below)];
  return [[x, above.y + above.height], [x, middle], [to, middle], [to, below.y]];
}

export function center(n) {
  return n.x + n.width / 2;
}

// outside adds the switch, and its ports that are no guests'.
function outside(out, page, width, bottom) {
  const y = bottom + 68;
  const sw = { id: "switch", kind: "bridge", label: "switch", x: pad, y, width: width - 2 * pad, height: 30 };
  out.nodes.set("switch", sw);
  for (const n of [...out.nodes.values()].filter((n) => n.kind === "nic")) {
    if (out.nodes.get(`nic ${n.item.name}`) !== n) {
      continue;
    }
    const name = n.item.name;
    out.edges.push({ points: [[center(n), n.y + n.height], [center(n), y]], leaf: { ...n, y }, wire: true,
      links: [`${name} in`, `${name} out`] });
  }
  const others = page.ports.filter((p) => p.kind === "host" || p.kind === "uplink");
  others.forEach((p, i) => {
    const node = { id: `port ${p.name}`, kind: p.kind, label: p.name, x: pad + 20 + i * (wide + 20), y: y + 86,
      width: wide, height: nodeHeight };
    out.nodes.set(node.id, node);
    out.edges.push({ points: [[center(node), y + 30], [center(node), node.y]], leaf: node, wire: true,
      links: [`${p.name} in`, `${p.name} out`] });
    width = Math.max(width, node.x + node.width + pad);
  });
  sw.width = width - 2 * pad;
  out.width = width;
  out.height = y + 30 + (others.length ? 56 + nodeHeight : 0) + pad;
}

// route returns the points of the line between two nodes of a tree, by way of the lowest node above both.
export function route(out, from, to) {
  const above = (n) => {
    const list = [n];
    for (let b = out.nodes.get(n.below); b; b = out.nodes.get(b.below)) {
      list.push(b);
    }
    return list;
  };
  const up = above(from);
  const down = above(to);
  const points = [middle(from)];
  const meet = up.find((n) => down.includes(n));
  for (const n of up) {
    if (n === meet) {
      break;
    }
    points.push(...elbow(out.nodes.get(n.below) ?? n, n).reverse());
  }
  if (!meet) { // on two sockets
    points.push(middle(up[up.length - 1]), middle(down[down.length - 1]));
  }
  const rest = meet ? down.slice(0, down.indexOf(meet)) : down.slice(0, -1);
  for (const n of rest.reverse()) {
    points.push(...elbow(out.nodes.get(n.below), n));
  }
  points.push(middle(to));
  return points;
}

export function middle(n) {
  return [center(n), n.y + n.height / 2];
}
