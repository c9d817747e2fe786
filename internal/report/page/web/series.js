// Counters over time. A counter that is smaller than before belongs to a new lab: it has no rate at that sample.
const kept = 600;

export class Series {
  constructor() {
    this.samples = []; // {t, links: Map of name to {bytes, busy}, flows: Map of key to {...}}
  }

  // add adds the samples of a Recording of package page that are later than the last one.
  add(recording) {
    for (const s of recording.samples) {
      const last = this.samples[this.samples.length - 1];
      if (last && s.t <= last.t) {
        continue;
      }
      const links = new Map(s.l.map(([i, bytes, busy]) => [recording.links[i], { bytes, busy }]));
      const flows = new Map(s.f.map(([i, sent, gpu, host, again, lost, inFlight, win, state]) =>
        [recording.flows[i], { sent, gpu, host, again, lost, inFlight, window: win, state }]));
      this.samples.push({ t: s.t, links, flows });
      if (this.samples.length > kept) {
        this.samples = this.samples.filter((_, k) => k % 2 === 0);
      }
    }
    return this;
  }

  get last() {
    return this.samples.length - 1;
  }

  // rate returns a counter's growth per second between samples i-1 and i; null: unknown.
  rate(i, read) {
    if (i < 1 || i > this.last) {
      return null;
    }
    const is = read(this.samples[i]);
    const was = read(this.samples[i - 1]) ?? 0;
    if (is === undefined || is < was) {
      return null;
    }
    return (is - was) / (this.samples[i].t - this.samples[i - 1].t);
  }

  // mean returns a counter's growth per second between the first and the last sample.
  mean(read) {
    let sum = 0;
    for (let i = 1; i <= this.last; i++) {
      sum += (this.rate(i, read) ?? 0) * (this.samples[i].t - this.samples[i - 1].t);
    }
    return this.last < 1 ? null : sum / (this.samples[this.last].t - this.samples[0].t);
  }

  // loads returns each link's rate, in bytes a second, and the part of the time for which the link was busy, between
  // samples i-1 and i; i null: over all samples.
  loads(i) {
    const out = new Map();
    const names = this.samples[i ?? this.last]?.links.keys() ?? [];
    for (const name of names) {
      const of = (read) => (i === null ? this.mean(read) : this.rate(i, read));
      const rate = of((s) => s.links.get(name)?.bytes);
      const busy = of((s) => s.links.get(name)?.busy);
      if (rate !== null) {
        out.set(name, { rate, busy: Math.min(busy ?? 0, 1) });
      }
    }
    return out;
  }

  // flowRate returns a flow's payload a second, between the same samples as loads.
  flowRate(key, i) {
    const read = (s) => {
      const f = s.flows.get(key);
      return f && Math.max(f.sent, f.gpu + f.host);
    };
    return i === null ? this.mean(read) : this.rate(i, read);
  }
}
