package stat

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
)

// mostFlows are in the table: those that moved most.
const mostFlows = 12

// tokensColumn is where tokens are told, if anybody knows: after what they are of.
const tokensColumn = 8

// FlowTable writes who sent what to whom since the process began; nothing if there was no payload.
func FlowTable(w io.Writer, now *Flows) error {
	t := table{seconds: 1}
	return t.flowTable(w, nil, now)
}

// flowTable writes the flows that moved most: what they moved since before, by the second, or in all if it is nil.
func (t *table) flowTable(w io.Writer, before, now *Flows) error {
	if now == nil {
		return nil
	}
	was := map[string]*Flow{}
	if before != nil {
		for i := range before.List {
			was[before.List[i].id()] = &before.List[i]
		}
	}
	var rows []*Flow
	more := 0
	for i := range now.List {
		f := &now.List[i]
		if !f.worthARow() {
			continue
		}
		if len(rows) == mostFlows {
			more++
			continue
		}
		rows = append(rows, f)
	}
	if len(rows) == 0 {
		return nil
	}
	title := "who sent what to whom"
	if more > 0 {
		title += fmt.Sprintf(", the largest of %d flows (--json shows all)", more+len(rows))
	}
	if _, err := fmt.Fprintf(w, "\n%s:\n", title); err != nil {
		return err
	}
	err := t.write(w, func() {
		head := []string{"FROM", "TO", "", "SENT", "FROM GPU", "ARRIVED", "IN GPU", "IN HOST", "HEADERS", "AGAIN", "DROPS",
			"QUEUE", "RULE", ""}
		if t.tokens = slices.ContainsFunc(rows, (*Flow).knowsHeld); t.tokens {
			head = slices.Insert(head, tokensColumn, "TOKENS HELD")
		}
		t.row(head...)
		for _, f := range rows {
			old := was[f.id()]
			if old == nil {
				old = new(Flow)
			}
			t.flow(old, f)
		}
	})
	for _, o := range now.Others {
		way := "received"
		if o.TX {
			way = "sent"
		}
		if err == nil {
			_, err = fmt.Fprintf(w, "others that %s %s: %s flows without a row of their own, %s packets, %s\n", o.Port, way,
				humanize.Comma(int64(o.Flows)), humanize.Comma(int64(o.Packets)), humanize.IBytes(o.Payload))
		}
	}
	for _, h := range now.Hints {
		if err == nil {
			_, err = fmt.Fprintf(w, "%s\n", h)
		}
	}
	return err
}

// id tells flows apart.
func (f *Flow) id() string { return f.Proto + " " + f.From + " " + f.To }

// flow writes a row.
func (t *table) flow(was, is *Flow) {
	wtx, wrx, tx, rx := total(was.TX), total(was.RX), total(is.TX), total(is.RX)
	cell := func(known bool, a, b uint64) string {
		if !known {
			return ""
		}
		return t.bytes(a, b)
	}
	sent, came := len(is.TX) > 0, len(is.RX) > 0
	drops := map[string]uint64{}
	for r, n := range tx.Drops {
		drops[r] = n
	}
	for r, n := range rx.Drops {
		drops[r] = max(drops[r], n)
	}
	var list []string
	for _, r := range slices.Sorted(maps.Keys(drops)) {
		list = append(list, fmt.Sprintf("%s %s", humanize.Comma(int64(drops[r])), r))
	}
	rule := ""
	if rx.Rule != 0 {
		rule = fmt.Sprint(rx.Rule)
	}
	queue := ""
	if came {
		queue = strings.ReplaceAll(numbers(rx.Queues), " and ", ",")
	}
	cells := []string{owner(is.TX) + is.From, owner(is.RX) + is.To, is.Proto, cell(sent, wtx.Payload(), tx.Payload()),
		cell(sent, wtx.GPU(), tx.GPU()), cell(came, wrx.Payload(), rx.Payload()), cell(came, wrx.GPU(), rx.GPU()),
		cell(came, wrx.Host, rx.Host), t.bytes(max(wtx.Header, wrx.Header), max(tx.Header, rx.Header)),
		t.bytes(max(wtx.Again, wrx.Again), max(tx.Again, rx.Again)), strings.Join(list, ", "), queue, rule, is.State}
	if t.tokens {
		held := ""
		if is.knowsHeld() {
			held = humanize.Comma(int64(is.tokensHeld()))
		}
		cells = slices.Insert(cells, tokensColumn, held)
	}
	t.row(cells...)
}

// owner is whose NIC a flow has at an end, in words before its address.
func owner(sides []FlowSide) string {
	switch len(sides) {
	case 0:
		return ""
	case 1:
		return sides[0].Port + " "
	}
	return fmt.Sprintf("%d ports ", len(sides))
}

// knowsHeld says whether anybody knows how many tokens a connection holds.
func (f *Flow) knowsHeld() bool {
	return slices.ContainsFunc(f.RX, func(s FlowSide) bool { return s.Held != nil })
}

func (f *Flow) tokensHeld() (n int) {
	for i := range f.RX {
		if h := f.RX[i].Held; h != nil {
			n += *h
		}
	}
	return n
}
