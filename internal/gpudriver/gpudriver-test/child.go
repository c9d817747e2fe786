package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/gpudriver"
)

type child struct {
	*exec.Cmd
	stdin io.Closer
	*region
}

func newChild(f *gpudriver.File, n *hostNIC, pages int) *child {
	t := n.t
	c := exec.Command("/proc/self/exe", "region", strconv.Itoa(pages))
	dup := os.NewFile(uintptr(must(unix.FcntlInt(uintptr(f.FD()), unix.F_DUPFD_CLOEXEC, 0))(t)), "gpu")
	defer dup.Close()
	c.ExtraFiles, c.Stderr = []*os.File{dup}, os.Stderr
	in := must(c.StdinPipe())(t)
	out := must(c.StdoutPipe())(t)
	t.ok(c.Start())
	x := &child{c, in, nil}
	started := false
	defer func() {
		if !started {
			t.note(x.end(true))
		}
	}()
	line := must(bufio.NewReader(out).ReadString('\n'))(t)
	id := must(strconv.ParseUint(strings.TrimSpace(line), 10, 32))(t)
	x.region = &region{f.Region(uint32(id)), n, 0}
	x.fault(0, strings.Repeat("G", pages/2)+strings.Repeat("R", pages-pages/2), true, false)
	started = true
	return x
}

func (c *child) end(kill bool) error {
	if kill {
		_ = c.Process.Kill()
		_ = c.Wait()
		return nil
	}
	return errors.Join(c.stdin.Close(), c.Wait())
}

func regionOf(t *T, pages string) {
	n := must(strconv.Atoi(pages))(t)
	f := gpudriver.FromFD(3)
	b := anonymous(t, n*page, false)
	fill(b, 21)
	r := must(f.OpenRegion(b))(t)
	toGPU(t, f, b[:n/2*page])
	fmt.Println(r.ID())
	t.ok(errOf(io.Copy(io.Discard, os.Stdin)))
}

// childTold: this program requests pages of a child process's memory; when the child ends, the NIC must release
// them.
func childTold(t *T, f *gpudriver.File, n *hostNIC) {
	for _, kill := range []bool{false, true} {
		c := newChild(f, n, 8)
		c.mustRelease()
		t.ok(c.end(kill))
		c.mustRelease(released{0, 8, isRelease})
		c.mayNotFault("memory of a process that is gone", 0, unix.ESRCH)
		t.ok(c.Close())
		c.mustRelease()
	}
}

// manyKilled starts processes, one after the other, and kills every second one while the NIC has its pages; the
// others exit while it has them.
func manyKilled(t *T, f *gpudriver.File, n *hostNIC) {
	for i := range 20 {
		t.step = fmt.Sprintf("process %d", i)
		c := newChild(f, n, 64)
		t.ok(c.end(i%2 == 0))
		c.mustRelease(released{0, 64, isRelease})
		t.ok(c.Close())
	}
}
