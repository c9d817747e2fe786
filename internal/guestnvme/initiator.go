package guestnvme

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/limits"
)

const (
	fabrics     = "/dev/nvme-fabrics" // drivers/nvme/host/fabrics.c
	controllers = "/sys/class/nvme"
)

// options returns the line of options that create writes to /dev/nvme-fabrics (drivers/nvme/host/fabrics.c,
// opt_tokens). The keep-alive time-out is long for initiators on emulated CPUs.
func (c *Connection) options() string {
	host, loss := cmp.Or(c.HostNQN, DefaultHostNQN), cmp.Or(c.LossSeconds, 30)
	s := fmt.Sprintf("transport=tcp,traddr=%v,trsvcid=%d,nqn=%s,hostnqn=%s,hostid=%s,keep_alive_tmo=30,"+
		"reconnect_delay=1,ctrl_loss_tmo=%d", c.Addr.Addr().Unmap(), c.Addr.Port(), c.NQN, host, hostID(host), loss)
	if c.Queues != 0 {
		s += fmt.Sprintf(",nr_io_queues=%d", c.Queues)
	}
	return s
}

// hostID derives a UUID from the name: version 8 (RFC 9562, 5.8).
func hostID(nqn string) string {
	b := sha256.Sum256([]byte(nqn))
	b[6], b[8] = b[6]&0x0f|0x80, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:16])
}

func connect(ctx context.Context, c Connection) (r Controller, err error) {
	if err := c.check(); err != nil {
		return Controller{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, limits.Disk.Here())
	defer cancel()
	name, err := within(ctx, func() (string, error) { return create(c.options()) },
		func(name string) { _ = remove(name) })
	if err != nil {
		return Controller{}, fmt.Errorf("connect to %s at %v: %w", c.NQN, c.Addr, err)
	}
	r.Name = name
	for _, id := range c.nsids() {
		n := Namespace{NSID: id}
		if err := poll(ctx, func() bool { return n.find(name) }); err != nil {
			err = fmt.Errorf("%s at %v has no namespace %d that is ready: %w", c.NQN, c.Addr, id, err)
			return Controller{}, errors.Join(err, removeSoon(name))
		}
		r.Namespaces = append(r.Namespaces, n)
	}
	return r, nil
}

// poll calls f at once, and then every 10 ms until f returns true. If ctx ends first, it returns the error of ctx.
func poll(ctx context.Context, f func() bool) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return nil
}

// create makes the kernel connect to a subsystem, and returns the controller's name.
func create(options string) (name string, err error) {
	f, err := os.OpenFile(fabrics, os.O_RDWR, 0)
	if err != nil {
		return "", fmt.Errorf("is the module nvme_tcp loaded?: %w", err)
	}
	defer func() { _ = f.Close() }()
	if _, err := f.WriteString(options); err != nil {
		return "", err
	}
	b := make([]byte, 128)
	n, err := f.Read(b)
	if err != nil {
		return "", err
	}
	for field := range strings.SplitSeq(strings.TrimSpace(string(b[:n])), ",") {
		if number, ok := strings.CutPrefix(field, "instance="); ok {
			return "nvme" + number, nil
		}
	}
	return "", fmt.Errorf("%s says %q", fabrics, b[:n])
}

func disconnect(ctx context.Context, c controller) (none agent.None, err error) {
	if !plain.MatchString(c.Name) {
		return none, fmt.Errorf("controller %q: %w", c.Name, unix.EINVAL)
	}
	return within(ctx, func() (agent.None, error) { return none, remove(c.Name) }, nil)
}

// remove deletes a controller; no error if it does not exist.
func remove(name string) error {
	err := set(filepath.Join(controllers, name), "delete_controller", "1")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// removeSoon is remove, but returns after limits.Initiator times limits.Slow at the latest; then the deletion goes on.
func removeSoon(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), limits.Initiator.Here())
	defer cancel()
	_, err := within(ctx, func() (any, error) { return nil, remove(name) }, nil)
	return err
}

var (
	plain = regexp.MustCompile(`^[a-z0-9]+$`) // matches the name of a controller or of a block device
	// pathName matches a namespace below a controller: nvme0n1, or with multipath nvme0c1n1, whose block device
	// is nvme0n1.
	pathName = regexp.MustCompile(`^(nvme[0-9]+)(c[0-9]+)?(n[0-9]+)$`)
)

// find sets n's other fields from the namespace n.NSID of a controller; false: the namespace does not exist yet, or
// its size, block size or file in /dev is missing.
func (n *Namespace) find(controller string) bool {
	entries, _ := os.ReadDir(filepath.Join(controllers, controller))
	for _, e := range entries {
		m := pathName.FindStringSubmatch(e.Name())
		if m == nil || number(filepath.Join(controllers, controller, e.Name(), "nsid")) != uint64(n.NSID) {
			continue
		}
		n.Device = m[1] + m[3]
		n.Size, n.BlockSize = sizes(n.Device)
		_, err := os.Stat("/dev/" + n.Device)
		return n.Size > 0 && n.BlockSize > 0 && err == nil
	}
	return false
}

// sizes returns a block device's size and block size, in bytes; 0: unknown.
func sizes(device string) (size uint64, block uint32) {
	dir := filepath.Join("/sys/block", device)
	return 512 * number(filepath.Join(dir, "size")), uint32(number(filepath.Join(dir, "queue/logical_block_size")))
}

// number reads a number from a file; 0: the file cannot be read, or has no number.
func number(path string) uint64 {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	v, _ := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	return v
}

// within runs f, which may wait in the kernel for any time. If ctx ends first, within returns its error and
// f goes on; if f then succeeds, late, unless nil, gets its result.
func within[V any](ctx context.Context, f func() (V, error), late func(V)) (V, error) {
	type result struct {
		v   V
		err error
	}
	done := make(chan result, 1)
	go func() {
		v, err := f()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
	}
	if late != nil {
		go func() {
			if r := <-done; r.err == nil {
				late(r.v)
			}
		}()
	}
	var none V
	return none, ctx.Err()
}
