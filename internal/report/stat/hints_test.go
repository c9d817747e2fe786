package stat

import (
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// Invariant: vnic stat: A hint names each flow that arrived in host memory though queues of its
// port are bound to GPU memory, with the queue by which it came and the bound queues.
func TestHints(t *testing.T) {
	side := func(host, gpu uint64, queues, bound []int, rule uint32) FlowSide {
		return FlowSide{Port: "guest1", Queues: queues, Bound: bound, Rule: rule, Packets: 1, Host: host, Device: gpu}
	}
	const who = "10.0.0.1:7 > 10.0.0.2:8: "
	for _, c := range []struct {
		name string
		flow Flow
		want string // "": no hint
	}{
		{"not steered", Flow{RX: []FlowSide{side(24<<20, 0, []int{0}, []int{1}, 0)}},
			"24 MiB arrived, none of it in GPU memory: the flow was not steered (it came by queue 0; bound is queue 1)"},
		{"steered elsewhere", Flow{RX: []FlowSide{side(24<<20, 0, []int{2}, []int{1}, 9)}},
			"24 MiB arrived, none of it in GPU memory: rule 9 leads it to queue 2, which is not bound; bound is queue 1"},
		{"not split", Flow{RX: []FlowSide{side(24<<20, 0, []int{1}, []int{1, 3}, 9)}},
			"24 MiB arrived, none of it in GPU memory: it came by queue 1, while that was not bound, or its headers could not " +
				"be split"},
		{"in part", Flow{RX: []FlowSide{side(4<<20, 20<<20, []int{1, 0}, []int{1}, 9)}},
			"4.0 MiB of 24 MiB arrived in host memory: it came by queue 1 and 0; bound is queue 1"},
		{"in GPU memory", Flow{RX: []FlowSide{side(0, 24<<20, []int{1}, []int{1}, 9)}}, ""},
		{"nobody bound anything", Flow{RX: []FlowSide{side(24<<20, 0, []int{0}, nil, 0)}}, ""},
		{"too little", Flow{RX: []FlowSide{side(1000, 0, []int{0}, []int{1}, 0)}}, ""},
		{"no peer to peer", Flow{RX: []FlowSide{{Host: 1 << 20, Bounced: 1 << 20, Bound: []int{1}, Queues: []int{1}}}},
			"1.0 MiB reached GPU memory by way of host memory: its NIC and its GPU have no peer to peer"},
		{"no buffers", Flow{TX: []FlowSide{{Drops: map[string]uint64{"no-buffer": 1200}}}},
			"1,200 packets were dropped: no-buffer: the receiver's queue had no buffers for them (are tokens returned?)"},
		{"again", Flow{TX: []FlowSide{{Host: 10 << 20, Again: 1 << 20}}}, "1.0 MiB were sent again, or came late"},
		{"hardly again", Flow{TX: []FlowSide{{Host: 10 << 20, Again: 1 << 10}}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.flow.Proto, c.flow.From, c.flow.To = "tcp", "10.0.0.1:7", "10.0.0.2:8"
			got := strings.Join(hints([]Flow{c.flow}), "\n")
			want := c.want
			if want != "" {
				want = who + want
			}
			testkit.Equal(t, "hints", got, want)
		})
	}
}

func TestHintsAreBounded(t *testing.T) {
	var list []Flow
	for range 100 {
		list = append(list, Flow{Proto: "tcp", TX: []FlowSide{{Drops: map[string]uint64{"no-buffer": 1}}}})
	}
	testkit.Equal(t, "hints", len(hints(list)), mostHints)
}
