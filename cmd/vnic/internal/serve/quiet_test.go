package serve

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// What is said of one port is bounded, by notes and log alike; of another all is said, and what was
// left out is counted.
func TestQuiet(t *testing.T) {
	var said bytes.Buffer
	q := newQuiet()
	note := q.note(func(port, format string, args ...any) { fmt.Fprintf(&said, port+": "+format+"\n", args...) })
	log := slog.New(&quietHandler{Handler: slog.NewTextHandler(&said, nil), q: q})
	one, other := log.With("port", "port0"), log.With("port", "port1")
	for range 5000 {
		note("port0", "connected")
		one.Warn("refused")
	}
	if n := strings.Count(said.String(), "\n"); n < quietBurst || n > 2*quietBurst {
		t.Errorf("%d lines of port0", n)
	}
	one.Info("is not bounded")
	other.WithGroup("g").Warn("of another")
	for _, want := range []string{"is not bounded", "of another"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("%q is not said", want)
		}
	}
	q.ports["port0"].lines.SetBurst(quietBurst + 1)
	q.ports["port0"].lines.SetLimit(1e9)
	testkit.Eventually(t, "there is room again", func() bool {
		said.Reset()
		note("port0", "hung up")
		return said.Len() > 0
	})
	if s := said.String(); !strings.Contains(s, "port0: ") ||
		!strings.HasSuffix(s, "lines were left out\nport0: hung up\n") {
		t.Errorf("said %q", s)
	}
}
