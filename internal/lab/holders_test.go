package lab_test

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
)

// Holders calls the function that SetHolders has set, but not again soon after a call that failed because its ctx had
// ended.
func TestHoldersAreAsked(t *testing.T) {
	p := open(t, lab.Uniform(1, lab.NIC{Model: lab.Virtio}, 0), lab.Options{}).Port(0)
	if _, known := p.Holders(t.Context()); known {
		t.Error("a port without a stack has holders")
	}
	want := []devmem.Holder{{Binding: 1, Local: netip.MustParseAddrPort("10.0.0.1:7"), Tokens: 3}}
	p.SetHolders(func(context.Context) ([]devmem.Holder, error) { return want, nil })
	for range 2 {
		list, known := p.Holders(t.Context())
		testkit.Equal(t, "known", known, true)
		if !slices.Equal(list, want) {
			t.Errorf("%v", list)
		}
	}
	asked := 0
	p.SetHolders(func(ctx context.Context) ([]devmem.Holder, error) {
		asked++
		<-ctx.Done()
		return nil, ctx.Err()
	})
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, known := p.Holders(ctx); known {
			t.Error("a guest that does not answer has holders")
		}
	}
	testkit.Equal(t, "questions", asked, 1)
}
