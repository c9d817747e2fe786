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
