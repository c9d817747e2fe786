package procmaps

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestLinesAreMappings(t *testing.T) {
	const text = `55d0c0a00000-55d0c0a21000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0010000000 rw-p 00000000 00:01 60540                      /memfd:memory-backend-memfd (deleted)
7f0010000000-7f0020000000 rw-s 00001000 103:0a 18446744073709551615        /dev/shm/a b (deleted)
7f0020000000-7f0020001000 rw-p 00000000 00:00 0
rubbish
7f0020000000-7f0020001000 rw 00000000 00:01 1 /short
7f0020000000-7f0020001000 rw-s 00000000 zz:01 1 /device
7ffd0e5f4000-7ffd0e615000 rw-p 00000000 00:00 0                          [stack]
`
	var got []Mapping
	if !read(strings.NewReader(text), func(m *Mapping) bool { got = append(got, *m); return true }) {
		t.Error("not complete")
	}
	testkit.Equal(t, "mappings", fmt.Sprint(got), fmt.Sprint([]Mapping{
		{1, 60540, false, "/memfd:memory-backend-memfd (deleted)"},
		{unix.Mkdev(0x103, 10), 1<<64 - 1, true, "/dev/shm/a b (deleted)"},
	}))
}

func TestListIsReadUpToItsLimit(t *testing.T) {
	const line = "7f0000000000-7f0010000000 rw-p 00000000 00:01 60540 /memfd:x\n"
	n := 0
	if read(strings.NewReader(strings.Repeat(line, Limit)), func(*Mapping) bool { n++; return true }) {
		t.Error("complete")
	}
	if most := Limit/len(line) + 1; n > most {
		t.Errorf("%d mappings, more than %d", n, most)
	}
	if Read(-1, func(*Mapping) bool { return true }) {
		t.Error("of no process")
	}
	found := false
	if !Read(os.Getpid(), func(m *Mapping) bool { found = found || !m.Shared; return true }) || !found {
		t.Error("our own program is not mapped")
	}
}
