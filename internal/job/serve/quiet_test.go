package serve

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// Warnings and notes about one port are bounded. A line of level Info about it and a warning about another port are
// written.
func TestQuiet(t *testing.T) {
	var output bytes.Buffer
	q := newQuiet()
	note := q.note(func(port, format string, args ...any) { fmt.Fprintf(&output, port+": "+format+"\n", args...) })
	log := slog.New(&quietHandler{Handler: slog.NewTextHandler(&output, nil), q: q})
	one, other := log.With("port", "port0"), log.With("port", "port1")
	for range 5000 {
		note("port0", "connected")
		one.Warn("refused")
	}
	if n := strings.Count(output.String(), "\n"); n < quietBurst || n > 2*quietBurst {
		t.Errorf("%d lines of port0", n)
	}
	one.Info("is not bounded")
	other.WithGroup("g").Warn("of another")
	for _, want := range []string{"is not bounded", "of another"} {
		if !strings.Contains(output.String(), want) {
			t.Errorf("no line with %q", want)
		}
	}
	q.ports["port0"].lines.SetBurst(quietBurst + 1)
	q.ports["port0"].lines.SetLimit(1e9)
	testkit.Eventually(t, "there is room again", func() bool {
		output.Reset()
		note("port0", "hung up")
		return output.Len() > 0
	})
	if s := output.String(); !strings.Contains(s, "port0: ") ||
		!strings.HasSuffix(s, "lines were left out\nport0: hung up\n") {
		t.Errorf("output %q", s)
	}
}
