package gvelab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
)

// remove removes the PCI device of the interface under test, with a.Up while a queue is bound
// (Documentation/ABI/testing/sysfs-bus-pci).
func (g *guest) remove(ctx context.Context, a *Args) (any, error) {
	return nil, g.away(ctx, a.Up, func() error {
		device, err := filepath.EvalSymlinks("/sys/class/net/" + underTestName + "/device")
		if err != nil {
			return err
		}
		if err := os.WriteFile(device+"/remove", []byte("1"), 0); err != nil {
			return err
		}
		if _, err := os.Stat(device); err == nil {
			return fmt.Errorf("%s is still there", device)
		}
		return nil
	})
}

// rescan makes the kernel find the device again, brings its interface up, and checks that the streams go on.
func (g *guest) rescan(ctx context.Context, _ *Args) (any, error) {
	if err := os.WriteFile("/sys/bus/pci/rescan", []byte("1"), 0); err != nil {
		return nil, err
	}
	limit, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no %s in %v", underTestName, patience))
	defer cancel()
	if err := poll(limit, func() (bool, error) {
		_, err := netlink.LinkByName(underTestName)
		return err == nil, nil
	}); err != nil {
		return nil, err
	}
	if err := bringUp(underTestName, underTest); err != nil {
		return nil, err
	}
	return nil, g.returned(ctx)
}
