// Functions that find flows, NICs and GPUs in the page's state.

// flowKey returns a flow's name in recordings.
export function flowKey(f) {
  return `${f.proto} ${f.from} > ${f.to}`;
}

// total adds up the counters that several NICs have of a flow.
export function total(sides) {
  const t = { payload: 0, gpu: 0, host: 0, header: 0, again: 0, bounced: 0, lost: 0, packets: 0, drops: {} };
  for (const s of sides ?? []) {
    t.gpu += s.device_bytes + s.gpu_file_bytes;
    t.host += s.host_bytes;
    t.header += s.header_bytes;
    t.again += s.again_bytes;
    t.bounced += s.bounced_bytes;
    t.packets += s.packets;
    for (const [reason, n] of Object.entries(s.drops ?? {})) {
      t.drops[reason] = (t.drops[reason] ?? 0) + n;
      t.lost += n;
    }
  }
  t.payload = t.gpu + t.host;
  return t;
}

// row returns the values that the table of flows shows for a flow.
export function row(f) {
  const tx = total(f.tx);
  const rx = total(f.rx);
  const arrived = f.rx?.length ? rx : tx;
  return {
    flow: f,
    key: flowKey(f),
    payload: Math.max(tx.payload, rx.payload),
    gpu: arrived.gpu,
    host: arrived.host,
    header: Math.max(tx.header, rx.header),
    again: Math.max(tx.again, rx.again),
    lost: tx.lost + rx.lost,
    queues: [...new Set((f.rx?.length ? f.rx : f.tx ?? []).flatMap((s) => s.queues))],
  };
}

// nicOf finds a port's machine and NIC; null: the port is no guest's.
export function nicOf(page, port) {
  for (const machine of page.machines) {
    const nic = machine.nics.find((n) => n.name === port);
    if (nic) {
      return { machine, nic };
    }
  }
  return null;
}

// gpuOf finds the GPU in whose memory a port's payload probably lies: a GPU whose memory the port uses, else the GPU
// with the most registered bytes, else the nearest one.
export function gpuOf(page, port) {
  const at = nicOf(page, port);
  if (!at || at.machine.gpus.length === 0) {
    return null;
  }
  const named = (name) => at.machine.gpus.find((g) => g.name === name);
  const used = page.memory.find((m) => named(m.gpu) && m.uses.some((u) => u.port === port));
  if (used) {
    return named(used.gpu);
  }
  const counters = page.ports.find((p) => p.name === port);
  const registered = [...(counters?.gpus ?? [])].filter((g) => g.registered_bytes > 0)
    .sort((a, b) => b.registered_bytes - a.registered_bytes)[0];
  return at.machine.gpus.find((g) => g.id === registered?.id) ?? named(at.nic.paths[0]?.gpu) ?? at.machine.gpus[0];
}

// direct reports whether a port's payload reaches a GPU without a copy in host memory.
export function direct(page, port, gpu) {
  return nicOf(page, port)?.nic.paths.find((p) => p.gpu === gpu.name)?.direct ?? false;
}

// hintsOf returns the hints about a flow, without the flow's name.
export function hintsOf(page, f) {
  const start = `${f.from} > ${f.to}: `;
  return (page.flows?.hints ?? []).filter((h) => h.startsWith(start)).map((h) => h.slice(start.length));
}

// buffers returns how many bytes of GPU memory receive queues of a port have posted, and how many are held; null: the
// maps show none.
export function buffers(page, port, queues) {
  const uses = page.memory.flatMap((m) => m.uses).filter((u) => u.port === port && queues.includes(u.queue));
  const sum = (state) => uses.filter((u) => u.state === state).reduce((n, u) => n + u.bytes, 0);
  return uses.length === 0 ? null : { posted: sum("posted"), held: sum("held") };
}
