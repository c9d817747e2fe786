package stat

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
)

// mostFlows is how many flows are in the table: the ones that moved most.
const mostFlows = 12

// FlowTable writes who sent what to whom since the process began; nothing if there was no payload.
func FlowTable(w io.Writer, now *Flows) error {
	t := table{seconds: 1}
	t.flows(nil, now)
	_, err := io.WriteString(w, t.text.String())
	return err
}

// flowRow is a row of the table of flows, with the sums of what the NICs at each end counted, before and now.
type flowRow struct {
	*Flow
	tx, rx [2]FlowSide
}

var flowColumns = []column[*flowRow]{
	{head: "FROM", cell: func(_ *table, r *flowRow) string { return owner(r.TX) + r.From }},
	{head: "TO", cell: func(_ *table, r *flowRow) string { return owner(r.RX) + r.To }},
	{cell: func(_ *table, r *flowRow) string { return r.Proto }},
	{head: "SENT", cell: flowBytes(true, false, (*FlowSide).Payload)},
	{head: "FROM GPU", cell: flowBytes(true, false, (*FlowSide).GPU)},
	{head: "ARRIVED", cell: flowBytes(false, true, (*FlowSide).Payload)},
	{head: "IN GPU", cell: flowBytes(false, true, (*FlowSide).GPU)},
	{head: "IN HOST", cell: flowBytes(false, true, func(s *FlowSide) uint64 { return s.Host })},
	{head: "TOKENS HELD", seldom: true, cell: func(_ *table, r *flowRow) string {
		if n, known := r.tokensHeld(); known {
			return humanize.Comma(int64(n))
		}
		return ""
	}},
	{head: "HEADERS", cell: flowBytes(true, true, func(s *FlowSide) uint64 { return s.Header })},
	{head: "AGAIN", cell: flowBytes(true, true, func(s *FlowSide) uint64 { return s.Again })},
	{head: dropsColumn, cell: func(_ *table, r *flowRow) string { return r.drops() }},
	{head: "QUEUE", cell: func(_ *table, r *flowRow) string {
		return strings.ReplaceAll(numbers(r.rx[1].Queues), " and ", ",")
	}},
	{head: "RULE", cell: func(_ *table, r *flowRow) string {
		if r.rx[1].Rule == 0 {
			return ""
		}
		return fmt.Sprint(r.rx[1].Rule)
	}},
	{cell: func(_ *table, r *flowRow) string { return r.State }},
}

// flowBytes makes a cell of a counter at the sender, at the receivers, or of the larger one; "" if no NIC counted it.
func flowBytes(sender, receivers bool, counter func(*FlowSide) uint64) func(*table, *flowRow) string {
	return func(t *table, r *flowRow) string {
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

// drops lists how many packets were dropped for which reason, by the end that counted more.
func (r *flowRow) drops() string {
	drops := map[string]uint64{}
	for _, counted := range []map[string]uint64{r.tx[1].Drops, r.rx[1].Drops} {
		for reason, n := range counted {
			drops[reason] = max(drops[reason], n)
		}
	}
	var list []string
	for _, reason := range slices.Sorted(maps.Keys(drops)) {
		list = append(list, comma(drops[reason])+" "+reason)
	}
	return strings.Join(list, ", ")
}

// flows adds the flows that moved most: what they moved since before, by the second, or in all if it is nil.
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
	var rows []*flowRow
	for i := range now.List {
		if f := &now.List[i]; f.worthARow() {
			b := old[f.id()]
			if b == nil {
				b = new(Flow)
			}
			rows = append(rows, &flowRow{f, [2]FlowSide{total(b.TX), total(f.TX)}, [2]FlowSide{total(b.RX), total(f.RX)}})
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
	write(t, flowColumns, rows[:min(len(rows), mostFlows)])
	for _, o := range now.Others {
		direction := "received"
		if o.TX {
			direction = "sent"
		}
		t.printf("others that %s %s: %s flows without a row of their own, %s packets, %s\n", o.Port, direction,
			comma(o.Flows), comma(o.Packets), humanize.IBytes(o.Payload))
	}
	for _, h := range now.Hints {
		t.printf("%s\n", h)
	}
}

// id tells flows apart.
func (f *Flow) id() string { return f.Proto + " " + f.From + " " + f.To }

// owner names the port of a flow's end, for before its address.
func owner(sides []FlowSide) string {
	switch len(sides) {
	case 0:
		return ""
	case 1:
		return sides[0].Port + " "
	}
	return fmt.Sprintf("%d ports ", len(sides))
}

// tokensHeld is how many tokens the connection holds, if any of its guests has answered.
func (f *Flow) tokensHeld() (n int, known bool) {
	for i := range f.RX {
		if h := f.RX[i].Held; h != nil {
			n, known = n+*h, true
		}
	}
	return n, known
}
