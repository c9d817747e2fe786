// The page: it gets the state, from the server or from the report itself, and shows it.
import { html, render, useEffect, useState } from "./libraries.js";
import { seconds } from "./units.js";
import { Series } from "./series.js";
import { flowKey } from "./model.js";
import { Picture } from "./picture.js";
import { Flows } from "./flows.js";
import { Way } from "./way.js";
import { Memory } from "./memory.js";
import { FlowCharts, LinkChart } from "./charts.js";
import { Events } from "./events.js";

const retry = 2000; // milliseconds

// live receives the server's events as long as the page is open.
function live(show) {
  let series = new Series();
  let ended = false;
  const connect = () => {
    const source = new EventSource("/events");
    source.addEventListener("history", (e) => { // also after a connection was lost
      ended = false;
      series = new Series().add(JSON.parse(e.data).recording);
    });
    source.addEventListener("state", (e) => {
      const state = JSON.parse(e.data);
      show({ page: state.page, series: series.add(state.recording), status: "Live." });
    });
    source.addEventListener("end", () => {
      ended = true;
      show({ status: "vnic has ended. This is what there was last." });
    });
    source.addEventListener("error", () => {
      source.close();
      if (!ended) {
        show({ status: "The connection is lost. Trying again.", lost: true });
      }
      setTimeout(connect, retry);
    });
  };
  connect();
}

function App() {
  const [{ page, series, status, lost, report }, setState] = useState({ status: "Connecting." });
  const [selected, setSelected] = useState(null);
  const [at, setAt] = useState(null); // sample; null: the last one, of a report all
  const show = (more) => setState((was) => ({ ...was, lost: false, ...more }));
  useEffect(() => {
    const embedded = JSON.parse(document.getElementById("data").textContent);
    if (embedded) {
      show({ page: embedded.page, series: new Series().add(embedded.recording), report: true,
        status: "A report of a run that has ended." });
    } else {
      live(show);
    }
  }, []);
  if (!page) {
    return html`<main><${Head} status=${status} lost=${lost} /></main>`;
  }
  const moment = at ?? (report ? null : series.last);
  const flow = (page.flows?.list ?? []).find((f) => flowKey(f) === selected);
  return html`<main>
    <${Head} page=${page} status=${status} lost=${lost} />
    ${report && html`<${Slider} series=${series} at=${at} set=${setAt} />`}
    <section aria-labelledby="lab"><h2 id="lab">Lab</h2>
      <${Picture} page=${page} loads=${series.loads(moment)} flow=${flow} />
      <p class="legend"><span><i class="key-line payload"></i> payload</span>
        <span><i class="key-line header"></i> headers</span>
        <span class="quiet">Links are drawn by what they carry ${moment === null ? "on the average of the run"
          : report ? `at ${seconds(series.samples[moment].t)}` : "now"}.</span></p>
    </section>
    <div class="columns">
      <div>
        <section aria-labelledby="flows"><h2 id="flows">Flows</h2>
          <${Flows} page=${page} rateOf=${(key) => series.flowRate(key, moment)} selected=${selected}
            select=${setSelected} />
        </section>
        <section class="last" aria-labelledby="events"><h2 id="events">Events</h2>
          <${Events} list=${page.events} /></section>
      </div>
      <section aria-labelledby="ways"><h2 id="ways">A packet's way</h2><${Way} page=${page} flow=${flow} /></section>
    </div>
    <section aria-labelledby="time"><h2 id="time">Over time</h2>
      <${FlowCharts} series=${series} flow=${flow && selected} />
      <${LinkChart} series=${series} /></section>
    <section aria-labelledby="memory"><h2 id="memory">GPU memory</h2><${Memory} maps=${page.memory}
      at=${page.memory_at} /></section>
  </main>`;
}

function Head({ page, status, lost }) {
  return html`<header><h1>vnic${page ? ` ${page.command}` : ""}</h1>
    <p role="status" class=${lost ? "lost" : ""}>${status}</p>
    ${page && html`<p class="quiet">${new Date(page.time).toLocaleString("en-GB")},
      ${` ${seconds(page.uptime_seconds)}`}</p>`}
  </header>`;
}

// Slider selects a moment of a report. At its right end it selects the whole run.
function Slider({ series, at, set }) {
  if (series.last < 1) {
    return null;
  }
  const end = series.last + 1;
  const text = at === null ? "the whole run" : seconds(series.samples[at].t);
  return html`<p class="slider"><label for="moment">Moment</label>
    <input id="moment" type="range" min="1" max=${end} value=${at ?? end} aria-valuetext=${text}
      onInput=${(e) => set(Number(e.target.value) === end ? null : Number(e.target.value))} />
    <output for="moment">${text}</output></p>`;
}

render(html`<${App} />`, document.getElementById("root"));
