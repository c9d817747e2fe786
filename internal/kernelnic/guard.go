package kernelnic

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/limits"
)

// GuardName is the argv[0] with which this program is started again to run Guard.
const GuardName = "vnic-guard"

// guard is a process that unregisters the buffers that this process leaves registered with the NIC when it closes the
// guard or ends, also if it is killed.
type guard struct {
	mu   sync.Mutex
	pipe *os.File // the guard's stdin; written under mu, which keeps lines whole
	proc *os.Process
}

func startGuard(name string) (*guard, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	p, err := os.StartProcess("/proc/self/exe", []string{GuardName, name}, &os.ProcAttr{
		Dir: "/", Files: []*os.File{r, nil, os.Stderr}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", GuardName, err), w.Close())
	}
	return &guard{pipe: w, proc: p}, nil
}

// note writes to the guard that a buffer was registered ('+') or unregistered ('-'). A nil guard has no process.
func (g *guard) note(sign byte, id uint32) error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	_, err := fmt.Fprintf(g.pipe, "%c%d\n", sign, id)
	return err
}

// close makes the guard unregister the buffers that are left and end, and waits for its end.
func (g *guard) close() error {
	if g == nil {
		return nil
	}
	err := g.pipe.Close()
	st, werr := g.proc.Wait()
	if werr == nil && !st.Success() {
		werr = fmt.Errorf("%s: %v", GuardName, st)
	}
	return errors.Join(err, werr)
}

// Guard is the guard's program: it reads its stdin to the end, and unregisters the buffers that are still registered
// according to its lines. args has the interface's name; the result is the exit status.
func Guard(args []string) int {
	if len(args) != 1 {
		fmt.Fprintf(os.Stderr, "%s: not to be started by hand\n", GuardName)
		return 2
	}
	left := registered(os.Stdin)
	if len(left) == 0 {
		return 0
	}
	if err := unregisterOf(args[0], left); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", GuardName, err)
		return 1
	}
	return 0
}

// registered reads lines "+ID" and "-ID", and returns the ids whose last line has a plus. Lines without a number of
// 32 bits are ignored.
func registered(r io.Reader) map[uint32]struct{} {
	left := map[uint32]struct{}{}
	for s := bufio.NewScanner(r); s.Scan(); {
		id, err := strconv.ParseUint(strings.TrimLeft(s.Text(), "+-"), 10, 32)
		switch {
		case err != nil:
		case s.Text()[0] == '+':
			left[uint32(id)] = struct{}{}
		default:
			delete(left, uint32(id))
		}
	}
	return left
}

func unregisterOf(name string, ids map[uint32]struct{}) (err error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	c, err := openChannel(name, link.Attrs())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	ctx, cancel := context.WithTimeout(context.Background(), limits.GVECommand.Here())
	defer cancel()
	for id := range ids {
		err = errors.Join(err, Unregister(ctx, c.ctl, id))
	}
	return err
}

// Unregister removes a buffer from the NIC. It is no error if the NIC does not have the buffer.
func Unregister(ctx context.Context, c *control.Client, id uint32) error {
	if err := c.UnregisterBuffer(ctx, id); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unregister buffer %d: %w", id, err)
	}
	return nil
}
