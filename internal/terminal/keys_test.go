package terminal

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"vnic.dev/vnic/internal/testkit"
)

// typed makes Keys that read a pipe, and returns the pipe's other end. Actions that a lacks fail the test.
func typed(t *testing.T, a Actions) (*Keys, *os.File) {
	t.Helper()
	t.Cleanup(func() { goleak.VerifyNone(t) })
	r, w, err := os.Pipe()
	testkit.OK(t, err)
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	for _, f := range []*func(){&a.Leave, &a.Help, &a.Lost} {
		if *f == nil {
			*f = func() { t.Error("an escape that nobody typed") }
		}
	}
	k := NewKeys(testkit.Must(NewInput(r))(t), a)
	t.Cleanup(func() { testkit.OK(t, k.Close()) })
	return k, w
}

// Invariant: vnic boot: Ctrl-] q leaves a guest that does not answer; keys before it reach the
// guest, as long as no more than MaxKeys bytes wait for it.
func TestEscapes(t *testing.T) {
	for name, c := range map[string]struct {
		typed, guest string
		helps        int
		left         bool
	}{
		"none":             {"ls -l\r", "ls -l\r", 0, false},
		"leave":            {"ab\x1dqcd", "ab", 0, true},
		"one prefix":       {"\x1d\x1d", "\x1d", 0, false},
		"three prefixes":   {"\x1d\x1d\x1dq", "\x1d", 0, true},
		"help":             {"a\x1d?b\x1d?", "ab", 2, false},
		"no escape":        {"\x1djx", "\x1djx", 0, false},
		"capital":          {"\x1dQ", "\x1dQ", 0, false},
		"prefix at an end": {"a\x1d", "a\x1d", 0, false},
		"q alone":          {"q?", "q?", 0, false},
		"bytes, not text":  {"\xff\x00\x1d\xfe", "\xff\x00\x1d\xfe", 0, false},
	} {
		for size := 1; size <= len(c.typed); size++ {
			helps, left := 0, false
			k, w := typed(t, Actions{Help: func() { helps++ }, Leave: func() { left = true }})
			for b := []byte(c.typed); len(b) > 0; {
				n := min(size, len(b))
				testkit.Must(w.Write(b[:n]))(t)
				b = b[n:]
			}
			testkit.OK(t, w.Close())
			got := testkit.Must(io.ReadAll(k))(t)
			testkit.OK(t, k.Close())
			if string(got) != c.guest || helps != c.helps || left != c.left {
				t.Errorf("%s, %d at a time: %q, %d helps, left %v", name, size, got, helps, left)
			}
		}
	}
}

func TestKeysTypedAheadAreKept(t *testing.T) {
	left := make(chan bool)
	k, w := typed(t, Actions{Leave: func() { close(left) }})
	testkit.Must(w.WriteString("typed ahead\x1dq"))(t)
	<-left
	testkit.Equal(t, "read later", string(testkit.Must(io.ReadAll(k))(t)), "typed ahead")
}

func TestKeysHaveABound(t *testing.T) {
	left, lost := make(chan bool), 0
	k, w := typed(t, Actions{Leave: func() { close(left) }, Lost: func() { lost++ }})
	many := bytes.Repeat([]byte("0123456789abcdef"), MaxKeys/16)
	for range 3 {
		testkit.Must(w.Write(many))(t)
	}
	testkit.Must(w.WriteString("\x1dq"))(t)
	<-left
	got := testkit.Must(io.ReadAll(k))(t)
	if !bytes.Equal(got, many) || lost != 1 {
		t.Errorf("%d bytes are kept, told %d times", len(got), lost)
	}
}

func TestKeysClosedWhileSomebodyReads(t *testing.T) {
	k, w := typed(t, Actions{})
	ended := make(chan error)
	go func() {
		_, err := k.Read(make([]byte, 8))
		ended <- err
	}()
	testkit.OK(t, k.Close())
	testkit.Equal(t, "the end of Read", <-ended, io.EOF)
	testkit.Must(w.WriteString(strings.Repeat("x", 8)))(t)
	testkit.Equal(t, "after it", testkit.Err(k.Read(make([]byte, 8))), io.EOF)
}
