// Command guest makes the mistakes of package mistakes in two guests of vnic boot, which run it at
// the same time: guest 0 is side a, guest 1 side b. The first line that side a prints for a mistake is
// compared with a page:
//
//	vnic boot --guests 2 --copy mistakes.md -- ./guest mistakes.md
//
// It prints a line for each mistake that this side takes part in, and for the right program before and after them. It
// fails if a mistake was not named, the right program or a peer that must not fail failed, or a process did not end
// within its limit. "guest count" prints how many lines side a and side b print.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/guest"
	"vnic.dev/vnic/test/internal/mistakes"
)

const (
	stall    = 6 * time.Second
	peer     = 30 * time.Second // the other guest may still run the previous mistake
	limit    = 100 * time.Second
	basePort = 7000
)

func main() {
	var err error
	switch {
	case len(os.Args) == 3 && os.Args[1] == "make":
		guest.Main(func(ctx context.Context, d *guest.Device) error { return child(ctx, d, os.Args[2]) })
	case len(os.Args) == 2 && os.Args[1] == "open":
		guest.Main(func(context.Context, *guest.Device) error { return errors.New("the device was opened twice") })
	case len(os.Args) == 2 && os.Args[1] == "count":
		fmt.Println(len(list()), len(slices.DeleteFunc(list(), func(m mistakes.Mistake) bool { return m.B == nil })))
	case len(os.Args) == 2:
		err = all(os.Args[1])
	default:
		err = errors.New("give the page")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// list returns the mistakes, with the program without a mistake before and after them.
func list() []mistakes.Mistake {
	return append(append([]mistakes.Mistake{mistakes.Right}, mistakes.List...), mistakes.Right)
}

// all makes this guest's side of each mistake.
func all(page string) error {
	rows, err := mistakes.Rows(page)
	if err != nil {
		return err
	}
	side := "a"
	if os.Getenv("VNIC_INDEX") != "0" {
		side = "b"
	}
	bad := 0
	for i, m := range list() {
		if side == "b" && m.B == nil {
			continue
		}
		line, status := run("make", fmt.Sprint(i))
		verdict := "ok  "
		switch {
		case status < 0:
			verdict = "HANGS"
		case side == "b" && !m.Peer, side == "b" && status == 0:
		case m.Name == mistakes.Right.Name && status == 0:
		case side == "a" && status == 1 && rows.Say(m.Name, line):
		default:
			verdict = "FAIL"
		}
		if !strings.HasPrefix(verdict, "ok") {
			bad++
		}
		fmt.Printf("%s %s: %s: %s\n", verdict, side, m.Name, line)
	}
	if bad > 0 {
		return fmt.Errorf("%d mistakes are not named", bad)
	}
	return nil
}

// run runs this program again, and returns the first line of its output ("succeeds" for status 0, "killed" for 128),
// and its status: 128 if a signal ended it, 127 if it could not be started, -1 if it did not end within limit.
func run(args ...string) (line string, status int) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c := exec.CommandContext(ctx, "/proc/self/exe", args...)
	c.Args[0] = "mistake"
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	line, _, _ = strings.Cut(out.String(), "\n")
	line = strings.TrimPrefix(line, "mistake: ")
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return line, -1
	case errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled():
		return "killed", 128
	case errors.As(err, &exit):
		return line, exit.ExitCode()
	case err != nil:
		return err.Error(), 127
	}
	return "succeeds", 0
}

func child(ctx context.Context, d *guest.Device, number string) error {
	var i int
	if _, err := fmt.Sscan(number, &i); err != nil || i < 0 || i >= len(list()) {
		return fmt.Errorf("no mistake %s", number)
	}
	d.StallLimit, d.PeerLimit = stall, peer
	s := &mistakes.Side{Device: d, Addr: d.Addr, Peer: d.AddrOf(1 - d.Index), Queue: d.Queue, Queues: d.Queue + 1,
		GPU: d.GPU, Size: d.Size, Memory: d.Engines(), Stall: stall,
		Connect: func(ctx context.Context, port uint16) (devmem.Conn, error) { return d.DialGuest(ctx, 1-d.Index, port) },
		Second: func() error {
			if line, status := run("open"); status != 0 {
				return errors.New(line)
			}
			return nil
		},
		Crash: func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) },
	}
	m, port := list()[i], uint16(basePort+10*i)
	if d.Index == 0 {
		return m.A(ctx, s, port)
	}
	return m.B(ctx, s, port)
}
