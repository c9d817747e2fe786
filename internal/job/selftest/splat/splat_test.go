package splat

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"vnic.dev/vnic/internal/golden"
	"vnic.dev/vnic/internal/testkit"
)

// scan writes text to a Scanner in pieces of so many bytes (0: 1), and returns the complaints after Flush.
func scan(text []byte, piece int) (list []Splat, s *Scanner) {
	s = New(func(found Splat) { list = append(list, found) })
	for b := range slices.Chunk(text, max(1, piece)) {
		s.Write(b)
	}
	s.Flush()
	return list, s
}

func describe(list []Splat) string {
	var b strings.Builder
	for _, s := range list {
		fmt.Fprintf(&b, "%s at %s: %s\n", s.Kind, s.Time, s.Title)
		if s.Function != "" {
			fmt.Fprintf(&b, "  in %s, module %q\n", s.Function, s.Module)
		}
		fmt.Fprintf(&b, "  %d lines, the last: %s\n", len(s.Lines), s.Lines[len(s.Lines)-1])
	}
	return b.String()
}

// Complaints are found; text that resembles one (harmless) is ignored. gve-null and xdp-warn are output of guests; the
// complaints in the other files follow the kernel's source.
func TestComplaintsAreFound(t *testing.T) {
	got := map[string]string{}
	for _, path := range testkit.Must(filepath.Glob("testdata/*.log"))(t) {
		text := testkit.Must(os.ReadFile(path))(t)
		name := strings.TrimSuffix(filepath.Base(path), ".log")
		list, _ := scan(text, len(text))
		got[name] = describe(list)
		for _, piece := range []int{1, 3, 100} {
			list, _ := scan(text, piece)
			testkit.Equal(t, fmt.Sprintf("%s in pieces of %d", name, piece), describe(list), got[name])
		}
	}
	testkit.Equal(t, "complaints in harmless text", got["harmless"], "")
	golden.Check(t, "testdata/golden", got)
}

func TestFunctionsAreNamed(t *testing.T) {
	for name, want := range map[string]struct {
		kind     Kind
		function string
		module   string
	}{
		"gve-null": {Oops, "gve_get_rx_queue_stats", "gve"},
		"xdp-warn": {Warning, "generic_xdp_install", ""},
	} {
		list, _ := scan(testkit.Must(os.ReadFile("testdata/"+name+".log"))(t), 4096)
		if s := list[0]; s.Kind != want.kind || s.Function != want.function || s.Module != want.module {
			t.Errorf("%s: %s", name, describe(list[:1]))
		}
	}
}

// After a fatal complaint results are worthless; a warning or a slow queue changes none.
func TestFatalComplaints(t *testing.T) {
	for kind, want := range map[Kind]bool{Oops: true, Bug: true, Lockup: true, Panic: true, HungTask: true, KASAN: true,
		Warning: false, UBSAN: false, Lockdep: false, Stall: false, TxTimeout: false, RefLeak: false, Leak: false} {
		testkit.Equal(t, string(kind), (&Splat{Kind: kind}).Fatal(), want)
	}
}

// A block that ends before the line with its kind and place is a warning: the lines that came are its title.
func TestBlocksWithoutALineOfTheirKind(t *testing.T) {
	const cut = "[    1.000000] " + cutHere + "\n"
	for text, want := range map[string]string{
		cut + "[    1.000001] refcount underflow\n": "refcount underflow",
		cut: cutHere,
	} {
		list, _ := scan([]byte(text), 100)
		if len(list) != 1 || list[0].Kind != Warning || list[0].Title != want {
			t.Errorf("%q: %s", text, describe(list))
		}
	}
}

func TestBlockIsToldOfAtItsEnd(t *testing.T) {
	var list []Splat
	s := New(func(found Splat) { list = append(list, found) })
	fmt.Fprintf(s, "[    1.000000] ------------[ cut here ]------------\n")
	fmt.Fprintf(s, "[    1.000001] WARNING: a.c:1 at f+0x1/0x2, CPU#0: a/1\n")
	if len(list) != 0 || !s.Open() {
		t.Errorf("before the end: %t %s", s.Open(), describe(list))
	}
	fmt.Fprintf(s, "[    1.000002] ---[ end trace 0000000000000000 ]---\n")
	if len(list) != 1 || s.Open() {
		t.Errorf("at the end: %t %s", s.Open(), describe(list))
	}
	fmt.Fprintf(s, "[    2.000000] watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [ip:412]")
	s.Flush()
	if len(list) != 2 || s.Open() {
		t.Errorf("after Flush: %t %s", s.Open(), describe(list))
	}
}

// Invariant: selftest: The memory kept for a console's complaints is bounded.
func TestComplaintsAreKeptWithinBounds(t *testing.T) {
	var b strings.Builder
	long := strings.Repeat("y", 5*MaxLine)
	for i := range MaxSplats + 5 {
		fmt.Fprintf(&b, "[    1.000000] WARNING: a.c:%d at f+0x1/0x2, CPU#0: %s\n", i, long)
		for range MaxLines + 7 {
			fmt.Fprintf(&b, "[    1.000001]  g+0x1/0x2 %s\n", long)
		}
		fmt.Fprintf(&b, "[    1.000002] ---[ end trace 0000000000000000 ]---\n")
	}
	for i := range 10 * MaxSplats {
		fmt.Fprintf(&b, "[    2.000000] unregister_netdevice: waiting for eth%d to become free. Usage count = 2\n", i)
	}
	list, s := scan([]byte(b.String()), 1<<20)
	testkit.Equal(t, "complaints", len(list), MaxSplats)
	testkit.Equal(t, "complaints left out", s.More, 5+10*MaxSplats)
	testkit.Equal(t, "titles that are remembered", len(s.once), MaxSplats)
	testkit.Equal(t, "lines", len(list[0].Lines), MaxLines)
	testkit.Equal(t, "lines left out", list[0].Dropped, 9)
	for _, l := range list[0].Lines {
		if len(l) > MaxLine+10 {
			t.Errorf("a line of %d bytes", len(l))
		}
	}
}

func FuzzScanner(f *testing.F) {
	for _, path := range testkit.Must(filepath.Glob("testdata/*.log"))(f) {
		f.Add(testkit.Must(os.ReadFile(path))(f), uint8(13))
	}
	f.Fuzz(func(t *testing.T, text []byte, piece uint8) {
		list, s := scan(text, len(text))
		if cut, _ := scan(text, int(piece)); describe(cut) != describe(list) {
			t.Errorf("in pieces of %d:\n%s\nnot\n%s", piece, describe(cut), describe(list))
		}
		if len(list) > MaxSplats || s.Open() {
			t.Errorf("%d complaints, open: %t", len(list), s.Open())
		}
		for _, s := range list {
			if s.Kind == "" || s.Title == "" || len(s.Lines) == 0 || len(s.Lines) > MaxLines || !utf8.ValidString(s.Title) {
				t.Errorf("%+v", s)
			}
		}
	})
}
