// Charts over time: the selected flow's, and the busiest links'.
import { html, useEffect, useRef, useState } from "./libraries.js";
import { bits, bytes, count, seconds } from "./units.js";

const height = 170;
const busiest = 6;
const dashes = [[], [8, 4], [2, 3], [10, 3, 2, 3], [4, 4], [14, 4]];

// Chart draws lines, {name, values}, over times, or nothing if no line has two values yet; show formats a value.
function Chart(props) {
  return props.lines.some((l) => l.values.filter((v) => v !== null).length > 1) ? html`<${Plot} ...${props} />` : null;
}

function Plot({ title, times, lines, show }) {
  const box = useRef(null);
  const plot = useRef(null);
  const [width, setWidth] = useState(0);
  const [dark, setDark] = useState(false);
  const names = JSON.stringify(lines.map((l) => l.name));
  useEffect(() => {
    const watch = new ResizeObserver((entries) => setWidth(Math.floor(entries[0].contentRect.width)));
    watch.observe(box.current);
    const query = matchMedia("(prefers-color-scheme: dark)");
    const change = () => setDark(query.matches);
    change();
    query.addEventListener("change", change);
    return () => {
      watch.disconnect();
      query.removeEventListener("change", change);
    };
  }, []);
  useEffect(() => {
    if (width === 0) {
      return undefined;
    }
    const style = getComputedStyle(box.current);
    const colour = (name) => style.getPropertyValue(`--${name}`);
    const grid = { stroke: colour("grid"), width: 1 };
    const axis = { stroke: colour("text"), grid, ticks: grid };
    plot.current = new uPlot({
      width, height, cursor: { drag: { x: false, y: false } },
      scales: { x: { time: false }, y: { range: (u, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [{ ...axis, values: (u, v) => v.map((t) => `${t} s`) },
        { ...axis, size: 78, values: (u, v) => v.map((n) => (n === 0 ? "0" : show(n))) }],
      series: [{ label: "at", value: (u, t) => seconds(t ?? last(u.data[0])) },
        ...lines.map((l, i) => ({ label: l.name, stroke: colour(`line-${i + 1}`), width: 2, dash: dashes[i],
          value: (u, n, of, at) => text(at === null ? last(u.data[of]) : n, show) }))],
    }, [times, ...lines.map((l) => l.values)], box.current);
    return () => {
      plot.current.destroy();
      plot.current = null;
    };
  }, [width, names, dark]);
  useEffect(() => plot.current?.setData([times, ...lines.map((l) => l.values)]), [times, lines]);
  const words = lines.map((l) => `${l.name} at most ${most(l, show)}`).join(", ");
  return html`<figure class="chart"><figcaption>${title}</figcaption>
    <div ref=${box} role="img" aria-label=${`${title}: ${words}`}></div></figure>`;
}

function last(values) {
  return values[values.length - 1];
}

function text(n, show) {
  return n === null || n === undefined ? "not known" : show(n);
}

function most(line, show) {
  return show(Math.max(0, ...line.values.filter((v) => v !== null)));
}

// over returns of(i) for the index i of each sample but the first.
function over(series, of) {
  return series.samples.map((s, i) => of(i)).slice(1);
}

function timesOf(series) {
  return series.samples.map((s) => s.t).slice(1);
}

export function FlowCharts({ series, flow }) {
  if (!flow || series.last < 2) {
    return html`<p class="quiet">${flow ? "Not enough samples as yet." : "Select a flow to see it over time."}</p>`;
  }
  const of = (read) => over(series, (i) => series.rate(i, (s) => {
    const f = s.flows.get(flow);
    return f && read(f);
  }));
  const now = (read) => over(series, (i) => {
    const f = series.samples[i].flows.get(flow);
    return (f && read(f)) ?? null;
  });
  const inFlight = now((f) => f.inFlight);
  const window = now((f) => f.window);
  const known = inFlight.some((n) => n !== null);
  const times = timesOf(series);
  return html`<div class="charts">
    <${Chart} title="Payload a second" times=${times} show=${bits} lines=${[
      { name: "sent", values: of((f) => f.sent) }, { name: "to GPU memory", values: of((f) => f.gpu) },
      { name: "to host memory", values: of((f) => f.host) }, { name: "again", values: of((f) => f.again) }]} />
    ${known && html`<${Chart} title="TCP: sent, and not acknowledged" times=${times} show=${bytes}
      lines=${[{ name: "in flight", values: inFlight }]} />`}
    ${known && html`<${Chart} title="TCP: the receiver's window, as its packets say it, not scaled" times=${times}
      show=${count} lines=${[{ name: "window", values: window }]} />`}
    <${Chart} title="Packets dropped a second" times=${times} show=${(n) => `${Math.round(n)}/s`}
      lines=${[{ name: "dropped", values: of((f) => f.lost) }]} />
  </div>`;
}

export function LinkChart({ series }) {
  if (series.last < 2) {
    return null;
  }
  const all = [...series.samples[series.last].links.entries()].filter(([, l]) => l.bytes > 0)
    .sort(([, a], [, b]) => b.bytes - a.bytes).slice(0, busiest);
  if (all.length === 0) {
    return null;
  }
  const of = (name) => over(series, (i) => series.rate(i, (s) => s.links.get(name)?.bytes));
  const drawn = all.map(([name]) => ({ name, values: of(name) }));
  return html`<${Chart} title="The links that carried most, bits a second" times=${timesOf(series)} lines=${drawn}
    show=${bits} />`;
}
