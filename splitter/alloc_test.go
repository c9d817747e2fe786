//go:build !race

package splitter

import (
	"testing"
	"vnic.dev/vnic/internal/testkit"
)

// Invariant: hot path: Nothing is allocated for a packet.
func TestNothingAllocates(t *testing.T) {
	g := golden{tcp4(4000), GSOTCPv4, 1448}
	super, m := g.super()
	short := tagged(tcp6(1), 0x8100)[:60]
	rss := testkit.Must(NewRSS(DefaultKey, make([]uint16, 8)))(t)
	rules := testkit.Must(NewRules([]Rule{{ID: 1, Fields: FieldDst | FieldDstPort, Flow: m.Headers.Flow}}))(t)
	var h Headers
	var s Segmenter
	var pm Meta
	dst := make([]byte, 66)
	bad := *m
	bad.GSOSize = 1
	for name, f := range map[string]func(){
		"Parse":         func() { _ = Parse(super, uint32(len(super)), &h) },
		"Parse, short":  func() { _ = Parse(short, 1000, &h) },
		"Parse, bad":    func() { _ = Parse(super, 40, &h) },
		"Hash":          func() { rss.Queue(rss.Hash(&m.Headers.Flow)) },
		"Lookup":        func() { rules.Lookup(&m.Headers.Flow) },
		"FixL4, Verify": func() { FixL4(&m.Headers, super[:66], 4000, 1); VerifyL4(&m.Headers, super[:66], 4000, 1) },
		"Piece": func() {
			_ = s.Init(super[:66], m, 4000)
			_ = s.Piece(dst, &pm, 1448, 1448)
			pm.Complete(dst, 1)
		},
		"Init, bad": func() { _ = s.Init(super[:66], &bad, 4000) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}
