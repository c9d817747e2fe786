package qemu

import (
	"strings"
	"testing"

	"vnic.dev/vnic/internal/proc"
)

func TestConsoleKeepsTheLastOfIt(t *testing.T) {
	var also strings.Builder
	c := &console{also: &also}
	c.tail.Max = 10
	for _, s := range []string{"abc", "defgh", "ijklm\n"} {
		if n, err := c.Write([]byte(s)); n != len(s) || err != nil {
			t.Fatal(n, err)
		}
	}
	if got := string(c.bytes()); got != "efghijklm\n" || also.String() != "abcdefghijklm\n" {
		t.Errorf("%q, %q", got, also.String())
	}
	if got := proc.LastLines([]byte("a\r\n\n b \nc"), 2); strings.Join(got, "|") != "b|c" {
		t.Errorf("%q", got)
	}
}

func TestPanicLine(t *testing.T) {
	text := "[ 1.0] x\n[ 2.5] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000100\r\n[ 2.6] more\n"
	if got := panicLine([]byte(text)); got != "Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000100" {
		t.Errorf("%q", got)
	}
	text = "[ 1.0] x\n[ 2.5] Kenl panic - t syncing\n[ 2.6]  vpanic+0x246/40\n[ 2.6]  panic+0x6b/70\n"
	if got := panicLine([]byte(text)); got != "its words did not come whole over the console" {
		t.Errorf("%q", got)
	}
	if got := panicLine([]byte("all well, no panic, in panics+0x1\n")); got != "" {
		t.Errorf("%q", got)
	}
}
