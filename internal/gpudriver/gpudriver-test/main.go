// Command gpudriver-test tests vnicgpu.ko in a guest in which no other program uses the GPU. It prints a
// line for each test; stress tests print more.
//
//	gpudriver-test                 memory, mappings and dma-bufs
//	gpudriver-test memory          the same, without the test that needs a NIC with device memory TCP
//	gpudriver-test private         a program's pages in the GPU
//	gpudriver-test private-long    the same, but in some tests with 64 MiB, and more often
//	gpudriver-test paging          pages that a NIC uses on demand, with a test on the host (package testnic)
//	gpudriver-test leave SIZE      moves SIZE bytes of pages to the GPU, prints their offsets there, and ends
//	gpudriver-test log             prints the kernel's log
//	gpudriver-test bind            binds memory of the GPU to the NIC eth0, unbinds it, and prints "bound" or the error
//
// The tests also start it, with other arguments.
package main

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/gpudriver"
)

const (
	page  = gpudriver.PageSize
	piece = 1 << 20
	nic   = "eth0"
	// patience bounds the wait for an event. It is long because the guest may be emulated.
	patience = 30 * time.Second
)

var commands = map[string]func(t *T, args []string){
	"log":     func(t *T, _ []string) { printLog(t) },
	"hold":    func(t *T, args []string) { hold(t, args[0], args[1]) },
	"leave":   func(t *T, args []string) { leave(t, args[0]) },
	"region":  func(t *T, args []string) { regionOf(t, args[0]) },
	"signals": func(t *T, args []string) { signalled(t, args[0]) },
	"bind":    func(t *T, _ []string) { bound(t) },
}

func main() {
	list := memoryCases
	if len(os.Args) > 1 {
		if do := commands[os.Args[1]]; do != nil {
			if err := run(func(t *T) { do(t, os.Args[2:]) }); err != nil {
				fatal(err)
			}
			return
		}
		switch os.Args[1] {
		case "memory":
			list = memoryCases[:len(memoryCases)-1]
		case "private":
			list = privateCases
		case "private-long":
			list, moveSize, moveTimes = privateCases, 64<<20, 20
		case "paging":
			list, mailboxSize = pagingCases, page
		default:
			fatal(fmt.Errorf("no argument, memory, private, private-long, paging, leave, bind or log, and not %q",
				os.Args[1]))
		}
	}
	failed := 0
	for _, c := range list {
		start := time.Now()
		if err := c.try(); err != nil {
			failed++
			fmt.Printf("FAIL %s: %v\n", c.name, err)
			continue
		}
		fmt.Printf("ok   %s (%.1f s)\n", c.name, time.Since(start).Seconds())
	}
	if failed > 0 {
		os.Exit(1)
	}
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func printLog(t *T) {
	b := make([]byte, 1<<20)
	n := must(unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, b))(t)
	t.ok(errOf(os.Stdout.Write(b[:n])))
}

var mailboxSize uint64

func (c *testCase) try() error {
	return run(func(t *T) {
		t.gpu = only(t)
		c.run(t)
		t.gpu = only(t) // if the test removed and added the GPU, it may have another name
		info := ask(t)
		t.require((info.Free == info.Size || info.Free == info.Size-mailboxSize) && info.Mapped == 0 && info.Private == 0,
			"left behind: %+v", info)
	})
}

func only(t *T) gpudriver.GPU {
	list := must(gpudriver.List())(t)
	t.require(len(list) == 1, "%d GPUs", len(list))
	return list[0]
}

func open(t *T) *gpudriver.File { return must(gpudriver.Open(t.gpu.Path))(t) }

func ask(t *T) gpudriver.Info {
	f := open(t)
	defer f.Close()
	return must(f.Info())(t)
}
