package guestnvme

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/guestroot"
	"vnic.dev/vnic/internal/undo"
)

// The kernel's NVMe target is configured by files (Linux drivers/nvme/target/configfs.c).
const (
	configfs = "/sys/kernel/config"
	nvmet    = configfs + "/nvmet"
)

type steps struct{ undo.Stack }

// server holds the state of the guest's target.
type server struct {
	mu   sync.Mutex
	now  *Target // under mu: the served target; nil: none
	undo steps   // under mu: the steps that end the served target
}

// serve configures the target, unless an equal one is served already; EBUSY: a different one is served.
func (s *server) serve(ctx context.Context, t Target) (none agent.None, err error) {
	if err := t.check(); err != nil {
		return none, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now != nil {
		if reflect.DeepEqual(*s.now, t) {
			return none, nil
		}
		return none, fmt.Errorf("%s is served: stop it first: %w", s.now.NQN, unix.EBUSY)
	}
	u, err := t.configure(ctx)
	if err != nil {
		return none, errors.Join(err, u.All())
	}
	s.now, s.undo = &t, u
	return none, nil
}

func (s *server) stop(context.Context, agent.None) (none agent.None, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err = s.undo.All()
	s.now = nil
	return none, err
}

// configure makes the subsystem, its namespaces and its ports. Also with an error it returns the steps that remove the
// parts that it has made.
func (t *Target) configure(ctx context.Context) (u steps, err error) {
	if err := mountConfigfs(); err != nil {
		return u, err
	}
	subsystem := filepath.Join(nvmet, "subsystems", t.NQN)
	if err := u.mkdir(subsystem); err != nil {
		return u, fmt.Errorf("subsystem: %w", err)
	}
	if err := set(subsystem, "attr_allow_any_host", "1"); err != nil {
		return u, fmt.Errorf("subsystem: %w", err)
	}
	for i, disk := range t.Disks {
		device, err := disk, error(nil)
		if !strings.HasPrefix(disk, "/") {
			device, err = guestroot.WaitDisk(ctx, disk)
		}
		if err == nil {
			err = u.namespace(filepath.Join(subsystem, "namespaces", strconv.Itoa(i+1)), device)
		}
		if err != nil {
			return u, fmt.Errorf("namespace %d, disk %s: %w", i+1, disk, err)
		}
	}
	for i, a := range t.Addrs {
		if err := u.port(filepath.Join(nvmet, "ports", strconv.Itoa(i+1)), a, subsystem); err != nil {
			return u, fmt.Errorf("port at %v: %w", a, err)
		}
	}
	return u, nil
}

func mountConfigfs() error {
	if err := unix.Mount("configfs", configfs, "configfs", unix.MS_NOSUID, ""); err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("mount configfs: is its module loaded?: %w", err)
	}
	if _, err := os.Stat(nvmet); err != nil {
		return fmt.Errorf("is the module nvmet loaded?: %w", err)
	}
	return nil
}

func (u *steps) mkdir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	u.Add(func() error { return unix.Rmdir(dir) })
	return nil
}

func (u *steps) namespace(dir, device string) error {
	err := u.mkdir(dir)
	if err == nil {
		err = set(dir, "device_path", device)
	}
	if err == nil {
		err = set(dir, "enable", "1")
	}
	if err == nil {
		u.Add(func() error { return set(dir, "enable", "0") })
	}
	return err
}

// port makes a port and links the subsystem into it: then the kernel listens at the address.
func (u *steps) port(dir string, a netip.AddrPort, subsystem string) error {
	if err := u.mkdir(dir); err != nil {
		return err
	}
	addr, family := a.Addr().Unmap(), "ipv6"
	if addr.Is4() {
		family = "ipv4"
	}
	for _, v := range [][2]string{{"addr_trtype", "tcp"}, {"addr_adrfam", family}, {"addr_traddr", addr.String()},
		{"addr_trsvcid", strconv.Itoa(int(a.Port()))}} {
		if err := set(dir, v[0], v[1]); err != nil {
			return err
		}
	}
	link := filepath.Join(dir, "subsystems", filepath.Base(subsystem))
	if err := os.Symlink(subsystem, link); err != nil {
		return err
	}
	u.Add(func() error { return os.Remove(link) })
	return nil
}

// set writes a value to the file name in dir, by one write(2).
func set(dir, name, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%s: %w", value, err)
	}
	return nil
}
