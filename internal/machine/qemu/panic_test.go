package qemu

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

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

// oops is Linux's output after a null pointer dereference, without lines of the trace and of registers.
const oops = `[  101.400000] gve 0000:00:04.0 eth0: Device link is down.
[  101.616161] BUG: kernel NULL pointer dereference, address: 00000000000000a0
[  101.617001] #PF: supervisor read access in kernel mode
[  101.617800] PGD 0 P4D 0
[  101.618100] Oops: Oops: 0000 [#1] SMP NOPTI
[  101.618500] CPU: 2 UID: 0 PID: 1234 Comm: python3 Not tainted 7.3.4
[  101.619000] Hardware name: QEMU Standard PC (Q35 + ICH9, 2009)
[  101.619400] RIP: 0010:gve_get_rx_queue_stats+0x17/0x50 [gve]
[  101.619800] Code: 90 90 90 90 90 90 90 90 90 0f 1f 44 00 00
[  101.620200] RSP: 0018:ffffb0c5c0a3b9a8 EFLAGS: 00010246
[  101.620600] RAX: 0000000000000000 RBX: 0000000000000000 RCX: 0000000000000000
[  101.621400] Call Trace:
[  101.621800]  <TASK>
%s[  101.623800]  ? __pfx_genl_dumpit+0x10/0x10
[  101.624200]  </TASK>
[  101.624600] Modules linked in: gve virtio_blk squashfs overlay
[  101.625000] ---[ end trace 0000000000000000 ]---
[  101.625400] RIP: 0010:gve_get_rx_queue_stats+0x17/0x50 [gve]
[  101.625410] Code: 90 90
%s[  101.625800] Kernel panic - not syncing: Fatal exception
[  101.626200] Kernel Offset: disabled
[  101.626600] ---[ end Kernel panic - not syncing: Fatal exception ]---
`

// Of a console with a panic, panicLines returns cause, place and trace.
func TestPanicShowsItsCause(t *testing.T) {
	frames := func(n int) (s string) {
		for i := range n {
			s += fmt.Sprintf("[  101.622200]  call%d+0x120/0x1c0\r\n", i)
		}
		return s
	}
	registers := strings.Repeat("[  101.625500] R13: 0000000000000000 R14: 0000000000000000\n", 20)
	for name, c := range map[string]struct {
		console string
		has     []string // in this order
		lines   int
	}{
		"oops": {fmt.Sprintf(oops, frames(3), registers), []string{"BUG: kernel NULL pointer", "#PF: ", "Oops: Oops",
			"CPU: 2 ", "RIP: 0010:gve_get_rx", "Call Trace", "call0+", "call1+", "call2+",
			"Kernel panic - not syncing: Fatal"}, 10},
		"an old one before": {strings.Repeat("x\n", 50) + "[ 1.0] WARNING: CPU: 0 at old+0x1/0x2\n" +
			strings.Repeat("y\n", 50) + fmt.Sprintf(oops, frames(1), registers), []string{"BUG: kernel NULL"}, 8},
		"deep": {fmt.Sprintf(oops, frames(100), registers), []string{"BUG: ", "RIP: ", "call14+", "... 84 more lines",
			"Kernel panic - not syncing: Fatal"}, panicLinesMax},
		"without time": {"BUG: unable to handle page fault\nRIP: 0010:f+0x1/0x2\nRAX: 0\n" + panicMark + ": Fatal\nRBX: 1\n",
			[]string{"BUG: ", "RIP: ", panicMark}, 3},
		"no init": {"a\n[ 1.0] b\n[ 1.1] c\n[ 1.2] Run /init as init process\n[ 1.3] /init: not found\n" +
			"[ 2.0] Kernel panic - not syncing: No working init found.\n[ 2.1] CPU: 0 PID: 1\n[ 2.2] Hardware name: Q\n" +
			"[ 2.3] Call Trace:\n[ 2.4]  panic+0x1/0x2\n", []string{"b", "Run /init", "/init: not found",
			"Kernel panic - not syncing: No working init", "CPU: 0", "Call Trace", "panic+0x1"}, 8},
		"the first line": {panicMark + ": Attempted to kill init!\nCPU: 0 PID: 1\nCall Trace:\n panic+0x1/0x2\n",
			[]string{panicMark, "CPU: 0", "Call Trace", "panic+0x1"}, 4},
		"words not whole": {"[ 1.0] BUG: x\n[ 2.5] Kenl panic - t syncing\n[ 2.6]  vpanic+0x246/0x40\n[ 2.7] R13: 0\n",
			[]string{"BUG: x", "vpanic+"}, 2},
		"arm64": {"[ 1.0] Unable to handle kernel NULL pointer dereference\n[ 1.1] Mem abort info:\n" +
			"[ 1.2] Internal error: Oops\n" +
			"[ 1.3] pc : f+0x1/0x2\n[ 1.4] x29: 0\n[ 1.5] Call trace:\n[ 1.6]  f+0x1/0x2\n[ 1.7] " + panicMark + ": Oops\n",
			[]string{"Unable to handle", "Internal error", "pc : f", "Call trace", "f+0x1", panicMark}, 6},
		"long": {"BUG: " + strings.Repeat("y", 5000) + "\n" + panicMark + "\n", []string{"yyy...", panicMark}, 2},
		"bytes of a program": {"\x1b[31mBUG: \x07x\n" + strings.Repeat("\x00", 5000) + "\n" + panicMark + "\n",
			[]string{panicMark}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			got := panicLines([]byte(c.console))
			pos := 0
			for _, want := range c.has {
				i := slices.IndexFunc(got[pos:], func(l string) bool { return strings.Contains(l, want) })
				if i < 0 {
					t.Fatalf("no %q behind line %d of\n%s", want, pos, strings.Join(got, "\n"))
				}
				pos += i
			}
			if s := strings.Join(got, "\n"); len(got) != c.lines || strings.Contains(s, "R13") || strings.Contains(s, "Code: ") {
				t.Errorf("%d lines, not %d:\n%s", len(got), c.lines, s)
			}
		})
	}
	for _, console := range []string{"", "\n", "x"} {
		_ = panicLines([]byte(console))
	}
	e := &RunError{Name: "guest0", Err: ErrKernelPanic, Console: []string{"BUG: x"}}
	testkit.Equal(t, "error", e.Error(), "guest0: guest kernel panic\nits kernel said:\n\tBUG: x")
}
