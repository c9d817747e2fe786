// The list of the lab's events, the latest first.
import { html } from "./libraries.js";

export function Events({ list: all }) {
  if (all.length === 0) {
    return html`<p class="quiet">Nothing has happened so far.</p>`;
  }
  return html`<div class="events" tabindex="0" role="group" aria-label="Events, the last first"><ol>
    ${[...all].reverse().map((e) => html`<li key=${e.seq} class=${e.kind}>
      <time datetime=${e.time}>${clock(e.time)}</time> <span class="kind">${e.kind}</span>
      <span>${e.port ? `${e.port}: ` : ""}${e.text}</span></li>`)}
  </ol></div>`;
}

function clock(time) {
  return new Date(time).toLocaleTimeString("en-GB", { hour12: false });
}
