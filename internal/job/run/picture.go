package run

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/report/plot"
)

// bounds of a picture
const (
	mostIntervals = 40 // about the most intervals in a line, unless there are more rounds
	mostBars      = 16
	alike         = 0.02 // rows whose loads differ by more, as a part of the rate, are not merged
)

// Picture returns the picture of a run that has ended, made from r's samples and the run's report.
func (r *Recorder) Picture(rep *Report) *plot.Picture {
	p := &plot.Picture{Title: r.title(rep), Subtitle: rep.subtitle(), Bars: rep.bars(),
		Footnote: "Rates are those of an emulator on one machine, and of nothing else."}
	if rep.Half != nil {
		p.Footnote = "Rates are those of emulators and of the network between them, and of nothing else."
	}
	if rep.scaled() {
		p.Footnote = fmt.Sprintf("Links were %s times slower than the lab file says, rates are as many times faster than "+
			"measured. Timers of the guests, as of TCP, were not slower.", humanize.Commaf(rep.Scale))
	}
	if slices.ContainsFunc(rep.Runs, func(r Run) bool { return r.Rounds > 1 }) {
		p.Footnote += " Between rounds nothing is transferred: GPU memory is read, compared and filled."
	}
	for i := range rep.Runs {
		p.Panels = append(p.Panels, r.panel(rep, &rep.Runs[i]))
	}
	return p
}

// scaled reports whether links were slower by a scale: rates are then shown as on the lab's own links.
func (rep *Report) scaled() bool { return len(rep.Rails) > 0 && rep.Scale > 1 }

func (rep *Report) rate(bytesPerSecond float64) float64 {
	if rep.scaled() {
		return bytesPerSecond * rep.Scale * 8 / 1e9
	}
	return bytesPerSecond / 1e6
}

func (rep *Report) unit() string {
	if rep.scaled() {
		return "Gbit/s"
	}
	return "MB/s"
}

func (r *Recorder) title(rep *Report) string {
	var b strings.Builder
	b.WriteString(cmp.Or(r.Name, "vnic run") + ": ")
	if len(rep.Rails) > 0 {
		n := rep.Rails[len(rep.Rails)-1].Rail + 1
		b.WriteString(english.Plural(n, "rail", ""))
		if rep.bidir() {
			b.WriteString(" in both directions")
		}
		b.WriteString(", ")
	}
	var modes []string
	for i := range rep.Runs {
		modes = append(modes, rep.Runs[i].Mode)
	}
	b.WriteString(strings.Join(modes, " and "))
	if rep.scaled() {
		fmt.Fprintf(&b, ", links at 1/%s of their rates", humanize.Commaf(rep.Scale))
	}
	return b.String()
}

func (rep *Report) bidir() bool { return len(rep.Rails) > 1 && rep.Rails[0].Rail == rep.Rails[1].Rail }

func (rep *Report) subtitle() string {
	size, each := uint64(0), ""
	if len(rep.Rails) > 0 {
		size, each = rep.Rails[0].Bytes, " per rail"
		if rep.bidir() {
			each = " each way"
		}
	} else if len(rep.Runs) > 0 {
		size = rep.Runs[0].Bytes
	}
	guests := "guests"
	if rep.Half != nil {
		guests = "guest " + rep.Half.Guest
	}
	if rep.Guest == "qemu" {
		guests += fmt.Sprintf(" in QEMU %s (%s)", rep.QEMU, rep.Accel)
	} else {
		guests += " in one process"
	}
	if rep.Half != nil {
		guests += ", guest " + rep.Half.Peer + " on another host"
	}
	parts := []string{lab.FormatBytes(size) + each, "NIC " + rep.NIC, fmt.Sprint("MTU ", rep.MTU), guests}
	if rep.Loss > 0 {
		parts = append(parts, fmt.Sprintf("loss %g %%", rep.Loss*100))
	}
	if rep.Reorder > 0 {
		parts = append(parts, fmt.Sprintf("reordered %g %%", rep.Reorder*100))
	}
	if !rep.P2P {
		parts = append(parts, "p2p off")
	}
	return strings.Join(append(parts, fmt.Sprint("seed ", rep.Seed)), "  ·  ")
}

func (r *Recorder) panel(rep *Report, run *Run) plot.Panel {
	p := plot.Panel{Unit: rep.unit()}
	all := ""
	if len(rep.Rails) > 0 {
		all = " in all"
	}
	rate := humanize.Comma(int64(math.Round(rep.rate(run.Rate()))))
	p.Title = fmt.Sprintf("%s: %s %s%s, %.2f s", run.Mode, rate, rep.unit(), all, run.Seconds)
	if run.Rounds > 1 {
		p.Title += fmt.Sprintf(" in %d rounds", run.Rounds)
	}
	rec := &recorded{}
	if i := slices.IndexFunc(r.modes, func(m *recorded) bool { return m.mode == run.Mode }); i >= 0 {
		rec = r.modes[i]
	}
	add := func(name, from, to string, x *Run) {
		s := plot.Series{Name: name, Mean: rep.rate(x.Rate())}
		for _, f := range rec.flows {
			if f.from == from && f.to == to {
				s.Intervals = f.intervals(rec, r.interval(), rep.rate(1))
			}
		}
		p.Series = append(p.Series, s)
	}
	line, same := 0., true
	for i := range rep.Rails {
		x := &rep.Rails[i]
		if x.Mode != run.Mode {
			continue
		}
		add(x.From+" → "+x.To, x.From, x.To, &x.Run)
		if x.Share != nil {
			same = same && (line == 0 || line == x.Share.LineRate)
			line = x.Share.LineRate
		}
	}
	if len(rep.Rails) == 0 {
		for _, f := range rec.flows {
			add(f.from+" → "+f.to, f.from, f.to, run)
		}
	}
	if rep.scaled() && same && line > 0 {
		p.Limit = &plot.Limit{At: line * 8 / 1e9, Text: "line rate"}
	}
	for _, m := range rec.marks {
		p.Marks = append(p.Marks, plot.Mark{At: m.when.Sub(rec.begin).Seconds(), Text: m.text})
	}
	return p
}

// interval returns the least length of intervals in all modes: sampleOften, or longer, so that the longest mode has
// about mostIntervals, or more if it has more rounds.
func (r *Recorder) interval() time.Duration {
	least := sampleOften
	for _, m := range r.modes {
		for _, f := range m.flows {
			if n := len(f.list); n > 0 {
				least = max(least, f.list[n-1].when.Sub(m.begin)/mostIntervals)
			}
		}
	}
	return least
}

// intervals returns a flow's rates (bytes a second, times factor) and lost packets in intervals between readings. An
// interval takes the time least or longer, except for the last one of a round, and is within one round.
func (f *flow) intervals(m *recorded, least time.Duration, factor float64) (list []plot.Interval) {
	seconds := func(t time.Time) float64 { return max(0, t.Sub(m.begin).Seconds()) }
	between := func(a, b reading) plot.Interval {
		v := plot.Interval{From: seconds(a.when), To: seconds(b.when), Lost: b.lost - min(b.lost, a.lost)}
		if v.To > v.From {
			v.Value = float64(b.bytes-a.bytes) / (v.To - v.From) * factor
		}
		return v
	}
	var before, begin reading // readings at the begin of the previous interval and of this one
	whole := false            // the previous interval is of the same round
	for i, now := range f.list {
		if now.first {
			begin, whole = now, false
			continue
		}
		last := i == len(f.list)-1 || f.list[i+1].first
		switch long := now.when.Sub(begin.when); {
		case last && whole && long < least/2: // too short for an interval of its own: it joins the previous one
			list[len(list)-1] = between(before, now)
		case last || long >= least:
			list = append(list, between(begin, now))
			before, begin, whole = begin, now, true
		}
	}
	return list
}

func (rep *Report) bars() *plot.Bars {
	rows := rep.barRows()
	if len(rows) == 0 {
		return nil
	}
	b := &plot.Bars{Title: "Links, those first that carried most"}
	model := plot.Column{Title: "share of its rate, if all sent at line rate (model)", Format: percentOf, Full: 1}
	carried := plot.Column{Title: "bytes carried, with headers and rings",
		Format: func(v float64) string { return humanize.SIWithDigits(v, 0, "B") }}
	if rep.scaled() {
		carried = plot.Column{Title: "share of its rate in this run (measured)", Format: percentOf, Full: 1}
	}
	any := false
	for i := range rep.Runs {
		b.Groups = append(b.Groups, rep.Runs[i].Mode)
		var loads, bytes []float64
		for _, row := range rows {
			loads, bytes = append(loads, row.load[i]), append(bytes, row.carried[i])
			any = any || row.load[i] >= 0
		}
		model.Values, carried.Values = append(model.Values, loads), append(carried.Values, bytes)
	}
	for _, row := range rows {
		b.Names = append(b.Names, row.name())
	}
	if any {
		b.Title = "Links, the most loaded first"
		b.Columns = append(b.Columns, model)
	}
	b.Columns = append(b.Columns, carried)
	return b
}

func percentOf(v float64) string {
	if v > 0 && v < 0.01 {
		return "< 1 %"
	}
	return fmt.Sprintf("%.0f %%", v*100)
}

// barRow is a link, or several links of a kind with nearly the same bars.
type barRow struct {
	link          string
	alike         int // further links that the row stands for
	rate          float64
	load, carried []float64 // by mode, as the columns of bars show them; -1: unknown, or the link carried nothing
}

// barRows returns at most mostBars rows, the most loaded first, and of about the same load those first that carried
// most. Rows of the same kind and rate that would look nearly the same are merged.
func (rep *Report) barRows() (rows []*barRow) {
	all, most := make(map[string]*barRow), 0.
	for i := range rep.Runs {
		run := &rep.Runs[i]
		for _, l := range run.Links {
			row := all[l.Name]
			if row == nil {
				row = &barRow{link: l.Name, rate: l.Rate, load: slices.Repeat([]float64{-1}, len(rep.Runs)),
					carried: slices.Repeat([]float64{-1}, len(rep.Runs))}
				all[l.Name] = row
			}
			switch {
			case !rep.scaled():
				row.carried[i] = float64(l.Bytes)
			case l.Rate > 0:
				row.carried[i] = float64(l.Bytes) * rep.Scale / run.Seconds / l.Rate
			}
			if l.Rate > 0 {
				row.load[i] = l.Load
			}
		}
	}
	for _, row := range all {
		rows = append(rows, row)
		most = max(most, slices.Max(row.carried))
	}
	slices.SortFunc(rows, func(a, b *barRow) int {
		steps := func(v []float64, step float64) float64 { return math.Round(slices.Max(v) / step) }
		return cmp.Or(cmp.Compare(steps(b.load, alike), steps(a.load, alike)),
			cmp.Compare(steps(b.carried, alike*most), steps(a.carried, alike*most)), strings.Compare(a.link, b.link))
	})
	kept := rows[:0]
	for _, row := range rows {
		if i := slices.IndexFunc(kept, func(k *barRow) bool { return row.isLike(k, most) }); i >= 0 {
			kept[i].alike, kept[i].link = kept[i].alike+1, min(kept[i].link, row.link)
			continue
		}
		kept = append(kept, row)
	}
	return kept[:min(len(kept), mostBars)]
}

// kind returns the link's name without the guest's and without digits.
func (row *barRow) kind() string {
	_, name, _ := strings.Cut(row.link, ".")
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, name)
}

func (row *barRow) isLike(other *barRow, most float64) bool {
	if row.kind() != other.kind() || row.rate != other.rate {
		return false
	}
	for i := range row.load {
		a, b := row.carried[i], other.carried[i]
		if math.Abs(row.load[i]-other.load[i]) > alike || math.Abs(a-b) > max(alike*most/2, 2*alike*max(a, b)) {
			return false
		}
	}
	return true
}

func (row *barRow) name() string {
	if row.alike == 0 {
		return row.link
	}
	return fmt.Sprintf("%s and %d alike", row.link, row.alike)
}
