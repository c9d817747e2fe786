package qemu

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/internal/testkit"
)

// peerQMP returns a client whose other end is not QEMU: it replies to the client's line n, from 1, with the result of
// the function answer.
func peerQMP(t *testing.T, answer func(n int, line string) string) *qmp {
	ours, theirs := net.Pipe()
	q := newQMP(ours)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer theirs.Close()
		if _, err := fmt.Fprintln(theirs, `{"QMP": {"version": {}, "capabilities": []}}`); err != nil {
			return
		}
		s := bufio.NewScanner(theirs)
		for n := 1; s.Scan(); n++ {
			if _, err := fmt.Fprintln(theirs, answer(n, s.Text())); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = ours.Close()
		for range q.events { // until the reader ends
		}
		<-done
	})
	return q
}

func TestQMPCommandsAndEvents(t *testing.T) {
	testkit.LeavesNothing(t)
	q := peerQMP(t, func(n int, line string) string {
		switch {
		case strings.Contains(line, `"qmp_capabilities"`):
			return fmt.Sprintf(`{"return": {}, "id": %d}`, n)
		case strings.Contains(line, `"query-status"`):
			return `{"event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-reset"}}` + "\nnot json\n[]\n" +
				`{"event": "RTC_CHANGE"}` + "\n" + `{"return": {"status": "other"}, "id": 999}` + "\n" +
				fmt.Sprintf(`{"return": {"status": "running", "running": true}, "id": %d}`, n)
		}
		return fmt.Sprintf(`{"error": {"class": "CommandNotFound", "desc": "no"}, "id": %d}`, n)
	})
	if _, err := q.do(t.Context(), "qmp_capabilities", nil); err != nil {
		t.Fatal(err)
	}
	if s, err := q.do(t.Context(), "query-status", nil); string(s) != `{"status": "running", "running": true}` || err != nil {
		t.Errorf("%q, %v", s, err)
	}
	if e := <-q.events; e.Event != "SHUTDOWN" || e.Data.Reason != "guest-reset" {
		t.Errorf("%+v", e)
	}
	if _, err := q.do(t.Context(), "bogus", nil); err == nil || !strings.Contains(err.Error(), "CommandNotFound") {
		t.Errorf("got %v", err)
	}
}

func TestQMPGivesUp(t *testing.T) {
	testkit.LeavesNothing(t)
	q := peerQMP(t, func(int, string) string { return "" })
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := q.do(ctx, "quit", nil); !errors.Is(err, context.DeadlineExceeded) &&
		!strings.Contains(fmt.Sprint(err), "timeout") {
		t.Errorf("got %v", err)
	}
	_ = q.conn.Close()
	for range q.events { // until the reader ends
	}
	if _, err := q.do(t.Context(), "quit", nil); err == nil {
		t.Error("a command on a closed connection: no error")
	}
}
