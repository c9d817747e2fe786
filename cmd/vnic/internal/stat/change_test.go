package stat

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
)

// What is asked for is done, and an error of it comes back; whoever asks for nothing gets counters, as before.
func TestChange(t *testing.T) {
	dir := place(t)
	s := start(t, Options{})
	change := testkit.Must(lab.ParseChange("link a.nic0 loss=1%"))(t)
	err := Change(t.Context(), os.Getpid(), change)
	if err == nil || !strings.Contains(err.Error(), "its lab is not there yet") {
		t.Errorf("without a lab: %v", err)
	}
	var got []string
	f := func(c lab.Change) error {
		if got = append(got, c.String()); len(got) > 1 {
			return errors.New("not twice")
		}
		return nil
	}
	s.change.Store(&f)
	testkit.OK(t, Change(t.Context(), os.Getpid(), change))
	if err := Change(t.Context(), os.Getpid(), change); err == nil || err.Error() != "not twice" {
		t.Errorf("%v", err)
	}
	if len(got) != 2 || got[0] != "link a.nic0 loss=1%" {
		t.Errorf("%q", got)
	}
	for line, want := range map[string]string{"get\n": `"get\" is nothing`, "set x\n": "not a change, as link a.nic0",
		"set link a los=1\n": "a link has no", strings.Repeat("x", 2*maxRequest): "is nothing",
		"\n": `"schema":1`, "": `"schema":1`} {
		c := testkit.Must(net.Dial("unix", filepath.Join(dir, socketName())))(t)
		_, _ = io.WriteString(c, line)
		testkit.OK(t, c.(*net.UnixConn).CloseWrite())
		b, _ := io.ReadAll(c)
		if !strings.Contains(strings.ReplaceAll(string(b), `\"`, `"`), strings.ReplaceAll(want, `\"`, `"`)) &&
			len(line) <= maxRequest {
			t.Errorf("%.20q: %s, not %s", line, b, want)
		}
		_ = c.Close()
	}
	self(t)
	if err := Change(t.Context(), 1<<30, change); !errors.Is(err, ErrNone) {
		t.Errorf("%v", err)
	}
}

// A server that is older gives counters whatever is asked.
func TestChangeOfAnOlderVnic(t *testing.T) {
	dir := place(t)
	testkit.OK(t, os.Mkdir(dir, 0o700))
	l := testkit.Must(net.Listen("unix", filepath.Join(dir, "1"+suffix)))(t)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, `{"schema":1}`)
			_ = c.Close()
		}
	}()
	err := Change(t.Context(), 1, testkit.Must(lab.ParseChange("link a loss=1%"))(t))
	if err == nil || !strings.Contains(err.Error(), "does not listen") && !strings.Contains(err.Error(), "reset") {
		t.Errorf("%v", err)
	}
}
