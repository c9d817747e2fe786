package stat

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
)

// Invariant: page: No page waits for a guest that does not report the holders of its tokens, and
// such a guest is asked only once at a time.
func TestPageWaitsForNoGuest(t *testing.T) {
	t.Setenv(EnvDir, filepath.Join(t.TempDir(), "run"))
	s := testkit.Must(Start(Options{Command: "boot"}))(t)
	defer s.Close()
	w := testkit.Must(lab.Open(lab.Uniform(2, lab.NIC{Model: lab.Virtio}, 0), lab.Options{Flows: 64,
		Log: slog.New(slog.DiscardHandler), Services: []lab.Service{s.Watch}}))(t)
	name, shown := w.Port(0).Name, make(chan struct{})
	asked := make(chan struct{}, 10)
	w.Port(0).SetHolders(func(context.Context) ([]devmem.Holder, error) { // it ignores its context, as a guest may
		asked <- struct{}{}
		select {
		case <-shown:
		case <-time.After(testkit.Patience):
			t.Error("a page waits for a guest")
		}
		return []devmem.Holder{{Tokens: 3}}, nil
	})
	for range 3 {
		if p := s.Page(); p.Flows == nil {
			t.Error("no account of flows: no guest is asked")
		}
	}
	now := func() (list []devmem.Holder, asking chan struct{}) {
		s.holders.mu.Lock()
		defer s.holders.mu.Unlock()
		return s.holders.last[name], s.holders.asking
	}
	list, asking := now()
	testkit.Equal(t, "answers", len(list), 0)
	close(shown)
	<-asking
	testkit.Equal(t, "questions", len(asked), 1)
	if list, _ = now(); len(list) != 1 || list[0].Tokens != 3 {
		t.Errorf("%v", list)
	}
	testkit.OK(t, w.Close())
	if list, asking := now(); len(list) != 0 || asking != nil {
		t.Errorf("answers outlive their lab: %v", list)
	}
}
