package boot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/internal/outfile"
	"vnic.dev/vnic/internal/testkit"
)

// While a run has its logs open, a second one with the same --log-dir fails; afterwards it does not.
//
// Invariant: vnic: A mistake gives one message that says what to do, and leaves nothing.
func TestDirectoryForLogsIsOfOne(t *testing.T) {
	o := good()
	o.Guests, o.LogDir = 2, filepath.Join(t.TempDir(), "made")
	first := &runner{opt: &o}
	if err := first.openLogs(); err != nil || len(first.logs) != 2 {
		t.Fatal(err)
	}
	other := o
	other.Guests = 1
	second := &runner{opt: &other}
	if err := second.openLogs(); !errors.Is(err, outfile.ErrInUse) ||
		!strings.HasPrefix(err.Error(), "--log-dir: "+o.LogDir) {
		t.Errorf("got %v", err)
	}
	testkit.OK(t, first.close())
	testkit.OK(t, second.openLogs())
	testkit.OK(t, second.close())
}

// Invariant: vnic: A mistake gives one message that says what to do, and leaves nothing.
func TestFullLogIsToldOnce(t *testing.T) {
	f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer f.Close()
	var notes []string
	l := &log{File: f, note: func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }}
	for range 3 {
		if _, err := l.Write([]byte("x")); err == nil {
			t.Error("written")
		}
	}
	if len(notes) != 1 || !strings.Contains(notes[0], "no space left") {
		t.Errorf("%q", notes)
	}
}

func TestPortForGDBThatIsTaken(t *testing.T) {
	s := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	o := good()
	o.GDB, o.Guests = s.Addr().(*net.TCPAddr).Port-1, 2
	if err := o.checkGDB(); err == nil ||
		!strings.Contains(err.Error(), fmt.Sprintf("port %d of guest1 is in use", o.GDB+1)) {
		t.Skipf("the port before it is taken, too: %v", err)
	}
	_ = s.Close()
	testkit.OK(t, o.checkGDB())
}

// The log of a successful run has the kernel's first line, and what a program writes to the kernel's log and the
// console.
func TestConsoleOfAGoodRunIsKept(t *testing.T) {
	testkit.Boots(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var out bytes.Buffer
	o := good()
	o.LogDir, o.Stdout, o.Stderr, o.NoGateway = t.TempDir(), &out, &out, true
	o.Command = []string{"sh", "-c", "echo to the log > /dev/kmsg; echo to the console > /dev/console"}
	if status, err := Do(ctx, o); err != nil || status != 0 {
		t.Fatalf("status %d, %v: %s", status, err, &out)
	}
	b := testkit.Must(os.ReadFile(filepath.Join(o.LogDir, "console-guest0.log")))(t)
	for _, want := range []string{"Linux version ", "Kernel command line: ", "] to the log", "to the console\r\n"} {
		if !bytes.Contains(b, []byte(want)) {
			t.Errorf("no %q in %d bytes", want, len(b))
		}
	}
}
