// The table of flows.
import { html, useRef, useState } from "./libraries.js";
import { bits, bytes, count, percent } from "./units.js";
import { row } from "./model.js";

const columns = [
  { id: "flow", name: "Flow", text: true, of: (r) => r.key },
  { id: "payload", name: "Payload", of: (r) => r.payload, show: (r) => bytes(r.payload) },
  { id: "gpu", name: "In GPU", of: (r) => r.gpu,
    show: (r) => (r.payload ? percent(r.gpu / (r.gpu + r.host || 1)) : "") },
  { id: "host", name: "In host", of: (r) => r.host, show: (r) => bytes(r.host), wide: true },
  { id: "header", name: "Headers", of: (r) => r.header, show: (r) => bytes(r.header), wide: true },
  { id: "queues", name: "Queue", of: (r) => r.queues[0] ?? -1, show: (r) => r.queues.join(", "), wide: true },
  { id: "again", name: "Again", of: (r) => r.again, show: (r) => (r.again ? bytes(r.again) : "") },
  { id: "lost", name: "Dropped", of: (r) => r.lost, show: (r) => (r.lost ? count(r.lost) : "") },
  { id: "rate", name: "Rate", of: (r) => r.rate ?? 0, show: (r) => (r.rate ? bits(r.rate) : "") },
  { id: "state", name: "State", text: true, of: (r) => r.flow.state ?? "", show: (r) => r.flow.state ?? "" },
];

// ofPrograms reports whether a flow belongs to programs: it leaves out frames by which hosts find each other.
function ofPrograms(r) {
  return r.flow.proto === "tcp" || r.flow.proto === "udp" || r.payload > 0 && r.flow.proto !== "other";
}

export function Flows({ page, rateOf, selected, select }) {
  const [order, setOrder] = useState({ id: "payload", down: true });
  const [all, setAll] = useState(false);
  const body = useRef(null);
  const every = (page.flows?.list ?? []).map(row);
  const rows = every.filter((r) => all || ofPrograms(r));
  rows.forEach((r) => { r.rate = rateOf(r.key); });
  const by = columns.find((c) => c.id === order.id);
  rows.sort((a, b) => {
    const [x, y] = order.down ? [by.of(b), by.of(a)] : [by.of(a), by.of(b)];
    return x < y ? -1 : x > y ? 1 : 0;
  });
  const focusable = rows.some((r) => r.key === selected) ? selected : rows[0]?.key;
  const keys = (event, key) => {
    const to = { ArrowDown: event.currentTarget.nextElementSibling, ArrowUp: event.currentTarget.previousElementSibling,
      Home: body.current.firstElementChild, End: body.current.lastElementChild }[event.key];
    if (event.key === "Enter" || event.key === " ") {
      select(key);
    } else if (event.key === "Escape") {
      select(null);
    } else if (to) {
      to.focus();
    } else {
      return;
    }
    event.preventDefault();
  };
  const toggle = (id) => setOrder({ id, down: order.id === id ? !order.down : !columns.find((c) => c.id === id).text });
  return html`<div>
    <div class="scroll"><table role="grid" aria-label="Flows">
      <thead><tr>${columns.map((c) => html`<th key=${c.id} class=${c.wide ? "wide" : ""} scope="col"
        aria-sort=${c.id !== order.id ? "none" : order.down ? "descending" : "ascending"}>
        <button type="button" onClick=${() => toggle(c.id)}>${c.name}<span aria-hidden="true">${
          c.id !== order.id ? "" : order.down ? " ↓" : " ↑"}</span></button></th>`)}</tr></thead>
      <tbody ref=${body}>${rows.map((r) => html`<tr key=${r.key} data-flow=${r.key}
          tabindex=${r.key === focusable ? 0 : -1} aria-selected=${r.key === selected}
          onClick=${() => select(r.key)} onKeyDown=${(e) => keys(e, r.key)}>
        ${columns.map((c) => html`<td key=${c.id} class=${`${c.wide ? "wide" : ""} ${c.text ? "text" : ""}`}>${
          c.id === "flow" ? html`<${Name} flow=${r.flow} />` : c.show(r)}</td>`)}
      </tr>`)}</tbody>
    </table></div>
    ${rows.length === 0 && html`<p class="quiet">No flow so far.</p>`}
    <p class="below">
      <label><input type="checkbox" checked=${all} onChange=${() => setAll(!all)} /> also ARP, ICMP and the like</label>
      ${page.more_flows ? html` <span class="quiet">${count(page.more_flows)} smaller flows are not shown.</span>` : ""}
    </p>
  </div>`;
}

function Name({ flow }) {
  return flow.from ? html`<span class="ends"><span>${flow.proto} ${flow.from}</span> <span>→ ${flow.to}</span></span>`
    : html`<span>not IP</span>`;
}
