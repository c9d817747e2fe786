package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/pflag"

	"vnic.dev/vnic/internal/broker"
	"vnic.dev/vnic/internal/job/serve"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/report/show"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) {
	if broker.Is(os.Args) { // this process is the broker of a vnic serve that a test runs in its own process
		os.Exit(broker.Main())
	}
	testscript.Main(m, map[string]func(){"vnic": main, serve.BackendName: main})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, goldenParams(t, "testdata/script", time.Minute, func(*testscript.Env) {}))
}

func TestErrorsAreOneLineAndWhatBelongsToIt(t *testing.T) {
	long := strings.Repeat("ü", 2000)
	many := strings.Repeat("\nline", 100)
	for name, tt := range map[string]struct{ err, want string }{
		"one line":  {"no QEMU: install it", "vnic: no QEMU: install it\n"},
		"more":      {"guest B: gone\nlast lines:\n\tpanic\n", "vnic: guest B: gone\n  last lines:\n    panic\n"},
		"a guest's": {"gone\n\x1b[31mred\x07", "vnic: gone\n  red\n"},
		"long":      {long, "vnic: " + strings.Repeat("ü", 500) + "...\n"},
		"many":      {"gone" + many, "vnic: gone" + strings.Repeat("\n  line", 39) + "\n  (61 more lines)\n"},
	} {
		var b bytes.Buffer
		complain(&b, errors.New(tt.err))
		testkit.Equal(t, name, b.String(), tt.want)
	}
}

// readerGone is true for EPIPE at stdout, not for another file or errno.
func TestReaderOfStdoutThatIsGone(t *testing.T) {
	for name, want := range map[string]bool{os.Stdout.Name(): true, "/tmp/fifo": false} {
		if readerGone(fmt.Errorf("x: %w", &os.PathError{Op: "write", Path: name, Err: syscall.EPIPE})) != want {
			t.Errorf("%s: not %v", name, want)
		}
	}
	if readerGone(&os.PathError{Op: "write", Path: os.Stdout.Name(), Err: syscall.ENOSPC}) || readerGone(nil) {
		t.Error("another error is taken for it")
	}
}

type noWriter struct{ err error }

func (w noWriter) Write([]byte) (int, error) { return 0, w.err }

func TestHelpThatNobodyReads(t *testing.T) {
	gone := &os.PathError{Op: "write", Path: os.Stdout.Name(), Err: syscall.EPIPE}
	full := &os.PathError{Op: "write", Path: os.Stdout.Name(), Err: syscall.ENOSPC}
	for _, args := range [][]string{{}, {"--help"}, {"run", "-h"}, {"help", "cache", "rm"}} {
		for _, tt := range []struct {
			err    error
			status int
			says   string
		}{{gone, exitPipe, ""}, {full, exitFailed, "vnic: " + full.Error() + "\n"}, {nil, 0, ""}} {
			var errs bytes.Buffer
			out := io.Writer(noWriter{tt.err})
			if tt.err == nil {
				out = io.Discard
			}
			if status := realMain(t.Context(), args, out, &errs); status != tt.status || errs.String() != tt.says {
				t.Errorf("vnic %s: %v: status %d, %q", strings.Join(args, " "), tt.err, status, errs.String())
			}
		}
	}
}

// A signal repeated within impatience has no effect; a later one ends vnic immediately.
func TestSecondSignalMeansNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		signals := make(chan os.Signal)
		var when time.Time
		begin := time.Now()
		go interrupts(signals, cancel, func() { when = time.Now() })
		for range 3 {
			signals <- syscall.SIGTERM
		}
		synctest.Wait()
		if context.Cause(ctx) != errInterrupted || !when.IsZero() {
			t.Errorf("cause %v, gone at %v", context.Cause(ctx), when)
		}
		time.Sleep(impatience + time.Millisecond) // synctest's clock
		signals <- syscall.SIGINT
		synctest.Wait()
		if took := when.Sub(begin); took < impatience {
			t.Errorf("gone after %v", took)
		}
	})
}

func TestInterruptionWinsOverWhatCameOfIt(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errInterrupted)
	var out, errs bytes.Buffer
	for _, args := range [][]string{{"run", "--guest", "inproc", "--size", "1M"}, {"run", "--qemu", "/no/such/qemu"}} {
		out.Reset()
		errs.Reset()
		if status := realMain(ctx, args, &out, &errs); status != exitFailed {
			t.Errorf("%q: status %d", args, status)
		}
		if !strings.HasSuffix("\n"+errs.String(), "\nvnic: interrupted\n") || out.Len() != 0 {
			t.Errorf("%q: %s%s", args, errs.String(), out.String())
		}
	}
}

// The help of these commands has examples before the usage. The examples' flags and arguments are accepted.
func TestHelpBeginsWithExamplesThatRun(t *testing.T) {
	for _, command := range []string{"", "run", "serve", "stat", "qemu", "cache", "cache ls", "cache rm", "doctor",
		"version"} {
		var out bytes.Buffer
		args := strings.Fields(command + " --help")
		if status := realMain(t.Context(), args, &out, &out); status != 0 {
			t.Fatalf("%q: status %d: %s", args, status, out.String())
		}
		examples, usage := strings.Index(out.String(), "Examples:\n"), strings.Index(out.String(), "Usage:\n")
		if examples < 0 || usage < examples {
			t.Fatalf("%q: no examples, or not first:\n%s", args, out.String())
		}
		for line := range strings.Lines(out.String()[examples+len("Examples:\n") : usage]) {
			line, _, _ = strings.Cut(strings.TrimSpace(line), "  ")
			line, _, _ = strings.Cut(line, " | ")
			words := strings.Fields(line)
			if len(words) == 0 {
				continue
			}
			if words[0] != "vnic" || len(words) < 2 {
				t.Errorf("example %q", line)
				continue
			}
			c, rest, err := newRoot().Find(words[1:])
			if err == nil {
				err = c.ParseFlags(rest)
			}
			if err == nil {
				err = c.ValidateArgs(c.Flags().Args())
			}
			if err != nil || !c.HasParent() || !strings.HasPrefix(line+" ", c.CommandPath()+" ") {
				t.Errorf("example %q: %v", line, err)
			}
		}
	}
}

func TestFlags(t *testing.T) {
	for s, want := range map[string]uint64{
		"0": 0, "1": 1, "4096": 4096, "64K": 64 << 10, "64k": 64 << 10, "256M": 256 << 20, "256MiB": 256 << 20, "4G": 4 << 30,
		"4gib": 4 << 30, "1T": 1 << 40, "8388607T": 8388607 << 40,
	} {
		var b bytesFlag
		if err := b.Set(s); err != nil || uint64(b) != want {
			t.Errorf("%q: %d, %v", s, b, err)
		}
		var again bytesFlag
		if err := again.Set(b.String()); err != nil || again != b {
			t.Errorf("%q: %s: %d, %v", s, b.String(), again, err)
		}
	}
	for _, s := range []string{"", "K", "iB", "-1", "+1", "1.5G", "64KB", "64 K", "0x10", "8388608T",
		"18446744073709551616", "1e6", "nonsense"} {
		var b bytesFlag
		if err := b.Set(s); err == nil {
			t.Errorf("%q is taken for %d", s, b)
		}
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	impairFlags(flags, new(lab.Impairment))
	f := flags.Lookup("loss").Value
	for s, want := range map[string]string{"0": "0%", "1%": "1%", "0.01": "1%", "0.5%": "0.5%", "99.9%": "99.9%",
		"1e-3": "0.1%", "0%": "0%"} {
		if err := f.Set(s); err != nil || f.String() != want {
			t.Errorf("%q: %v, %v", s, f.String(), err)
		}
	}
	for _, s := range []string{"", "%", "1", "100%", "150%", "-1%", "-0.1", "NaN", "Inf", "1%%", "half"} {
		if err := f.Set(s); err == nil {
			t.Errorf("%q is taken for %s", s, f.String())
		}
	}
}

func TestDoctorSaysWhatARunNeeds(t *testing.T) {
	facts := []assets.Fact{{Name: "qemu", State: assets.Good, Value: "11.1.2"},
		{Name: "kvm", State: assets.Worse, Value: "none", Fix: "slower"},
		{Name: "space", State: assets.Lacking, Value: "1 MB", Fix: "free some"}}
	for want, rep := range map[string]qemu.Report{
		"ready: 'vnic run' has all it needs, and takes 1024 MB of memory while it runs": {Ready: true, MemoryBytes: 1 << 30},
		"ready: the first 'vnic run' downloads 60 MB and keeps 200 MB in the cache; it takes 1024 MB of memory": {
			CanFetch: true, DownloadBytes: 60 << 20, DiskBytes: 200 << 20, MemoryBytes: 1 << 30},
		"not ready for guests in QEMU": {},
	} {
		rep.Facts = facts
		var b strings.Builder
		testkit.OK(t, show.Doctor(&b, &rep))
		const table = "qemu   ok       11.1.2\nkvm    note     none\n                slower\nspace  missing  1 MB\n     " +
			"           free some\n\n"
		if !strings.HasPrefix(b.String(), table+want) {
			t.Errorf("%s", b.String())
		}
	}
}
