package stat

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"

	"vnic.dev/vnic/internal/report"
)

const mostFlows = 12

// FlowTable writes the table of the flows that moved most, with their bytes in total, and below it the sums of other
// flows and the hints. It writes nothing if now is nil or no flow is worth a row (worthARow).
func FlowTable(w io.Writer, now *Flows) error {
	t := table{seconds: 1}
	t.flows(nil, now)
	_, err := io.WriteString(w, t.text.String())
	return err
}

// flowRow has the sums of the senders' (tx) and the receivers' (rx) counters, before and now.
type flowRow struct {
	*Flow
	tx, rx [2]FlowSide
}

func (t *table) flowColumns() report.Columns[flowRow] {
	return report.Columns[flowRow]{
		{Title: "FROM", Text: func(r *flowRow) string { return owner(r.TX) + r.From }},
		{Title: "TO", Text: func(r *flowRow) string { return owner(r.RX) + r.To }},
		{Title: " ", Text: func(r *flowRow) string { return r.Proto }},
		{Title: "SENT", Text: t.flowBytes(true, false, (*FlowSide).Payload)},
		{Title: "FROM GPU", Text: t.flowBytes(true, false, (*FlowSide).GPU)},
		{Title: "ARRIVED", Text: t.flowBytes(false, true, (*FlowSide).Payload)},
		{Title: "IN GPU", Text: t.flowBytes(false, true, (*FlowSide).GPU)},
		{Title: "IN HOST", Text: t.flowBytes(false, true, func(s *FlowSide) uint64 { return s.Host })},
		report.Optional("TOKENS HELD", func(r *flowRow) *int { return r.tokensHeld() },
			func(n *int) string { return humanize.Comma(int64(*n)) }),
		{Title: "HEADERS", Text: t.flowBytes(true, true, func(s *FlowSide) uint64 { return s.Header })},
		{Title: "AGAIN", Text: t.flowBytes(true, true, func(s *FlowSide) uint64 { return s.Again })},
		{Title: dropsColumn, Text: (*flowRow).drops},
		{Title: "QUEUE", Text: func(r *flowRow) string { return strings.ReplaceAll(numbers(r.rx[1].Queues), " and ", ",") }},
		{Title: "RULE", Text: func(r *flowRow) string {
			if r.rx[1].Rule == 0 {
				return ""
			}
			return fmt.Sprint(r.rx[1].Rule)
		}},
		{Title: " ", Text: func(r *flowRow) string { return r.State }},
	}
}

// flowBytes returns a function that formats the counter's sum at the senders if sender is true, at the receivers if
// receivers is true, or the larger of both; "": no NIC counted the flow on that side.
func (t *table) flowBytes(sender, receivers bool, counter func(*FlowSide) uint64) func(*flowRow) string {
	return func(r *flowRow) string {
		var n [2]uint64
		for i := range n {
			if sender {
				n[i] = counter(&r.tx[i])
			}
			if receivers {
				n[i] = max(n[i], counter(&r.rx[i]))
			}
		}
		if sender && len(r.TX) > 0 || receivers && len(r.RX) > 0 {
			return t.bytes(n[0], n[1])
		}
		return ""
	}
}

// drops lists dropped packets by reason, for each reason the larger of the senders' and the receivers' sums.
func (r *flowRow) drops() string {
	drops := map[string]uint64{}
	for _, counted := range []map[string]uint64{r.tx[1].Drops, r.rx[1].Drops} {
		for reason, n := range counted {
			drops[reason] = max(drops[reason], n)
		}
	}
	var list []string
	for _, reason := range slices.Sorted(maps.Keys(drops)) {
		list = append(list, report.Number(drops[reason])+" "+reason)
	}
	return strings.Join(list, ", ")
}

// flows adds the table of the flows that moved most, with the sums of other flows and the hints, unless now is nil or
// no flow is worth a row. The table has bits per second since before, or, without t.bits, bytes in total; DROPS is a
// total in both cases. before may be nil.
func (t *table) flows(before, now *Flows) {
	if now == nil {
		return
	}
	old := map[string]*Flow{}
	if before != nil {
		for i := range before.List {
			old[before.List[i].id()] = &before.List[i]
		}
	}
	var rows []flowRow
	for i := range now.List {
		if f := &now.List[i]; f.worthARow() {
			b := old[f.id()]
			if b == nil {
				b = new(Flow)
			}
			rows = append(rows, flowRow{f, [2]FlowSide{total(b.TX), total(f.TX)}, [2]FlowSide{total(b.RX), total(f.RX)}})
		}
	}
	if len(rows) == 0 {
		return
	}
	title := "who sent what to whom"
	if len(rows) > mostFlows {
		title += fmt.Sprintf(", the largest of %d flows (--json shows all)", len(rows))
	}
	t.printf("\n%s:\n", title)
	write(t, t.flowColumns(), rows[:min(len(rows), mostFlows)])
	for _, o := range now.Others {
		direction := "received"
		if o.TX {
			direction = "sent"
		}
		t.printf("others that %s %s: %s flows without a row of their own, %s packets, %s\n", o.Port, direction,
			report.Number(o.Flows), report.Number(o.Packets), humanize.IBytes(o.Payload))
	}
	for _, h := range now.Hints {
		t.printf("%s\n", h)
	}
}

func (f *Flow) id() string { return f.Proto + " " + f.From + " " + f.To }

// owner returns, with a space behind it, the name of the only side's port, or the number of ports; "" without a side.
func owner(sides []FlowSide) string {
	switch len(sides) {
	case 0:
		return ""
	case 1:
		return sides[0].Port + " "
	}
	return fmt.Sprintf("%d ports ", len(sides))
}

// tokensHeld returns the sum of Held at the receivers; nil if no receiver has it.
func (f *Flow) tokensHeld() (n *int) {
	for i := range f.RX {
		if h := f.RX[i].Held; h != nil {
			if n == nil {
				n = new(int)
			}
			*n += *h
		}
	}
	return n
}
