package qemu_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/vfiouser"
	"vnic.dev/vnic/vfiouser/pci"
)

// plain is a device that ignores accesses to its BARs, and reports events.
type plain struct {
	config  *pci.Config
	enabled chan struct{} // receives when the BARs become enabled
	resets  chan struct{} // receives when the device is reset
}

func (d *plain) Info() vfiouser.Info {
	bar := vfiouser.Region{Size: 4096, Read: true, Write: true}
	return vfiouser.Info{Reset: true,
		Regions: []vfiouser.Region{0: bar, 1: bar, vfiouser.RegionConfig: {Size: d.config.Size(), Read: true, Write: true}},
		IRQs:    []vfiouser.IRQ{vfiouser.IRQMSIX: {Count: 3}, vfiouser.IRQErr: {Count: 1}}}
}

func (d *plain) ReadRegion(region int, off uint64, b []byte) error {
	if region == vfiouser.RegionConfig {
		return d.config.Read(off, b)
	}
	return nil
}

func (d *plain) WriteRegion(region int, off uint64, b []byte) error {
	if region != vfiouser.RegionConfig {
		return nil
	}
	was := d.config.MemoryEnabled()
	err := d.config.Write(off, b)
	if !was && d.config.MemoryEnabled() {
		select {
		case d.enabled <- struct{}{}:
		default:
		}
	}
	return err
}

func (d *plain) SetIRQ(_, _, fd int) error {
	if fd >= 0 {
		return unix.Close(fd)
	}
	return nil
}

func (d *plain) Reset() error {
	d.config.Reset()
	select {
	case d.resets <- struct{}{}:
	default:
	}
	return nil
}

func (d *plain) DisableIRQs(int) error    { return nil }
func (d *plain) Unmapping(uint64, uint64) {}
func (d *plain) MemoryChanged()           {}
func (d *plain) Disconnected()            {}

// QEMU works with vnic's vfio-user server, and quits after the server has gone.
//
// Invariant: vfiouser: QEMU can exit after its server has ended.
func TestVFIOUserDeviceInQEMU(t *testing.T) {
	if testing.Short() {
		t.Skip("needs QEMU, and the network the first time")
	}
	r := testkit.Must(assets.Fetch(t.Context(), assets.Options{IgnoreSystemQEMU: true, VFIOUser: true}))(t)
	for name, express := range map[string]pci.Link{"conventional": {}, "express": {Generation: 3, Lanes: 16}} {
		t.Run(name, func(t *testing.T) { vfioUserDevice(t, r.QEMU, express) })
	}
}

func vfioUserDevice(t *testing.T, b assets.Binary, express pci.Link) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // bounds a failing test
	defer cancel()
	path := filepath.Join(t.TempDir(), "s")
	l := testkit.Must(net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path}))(t)
	defer l.Close()
	config, err := pci.New(pci.Options{Vendor: 0x1af4, Device: 0x10f0, Class: 0xff0000, Express: express,
		BARs: [6]pci.BAR{{Size: 4096}, {Size: 4096}}, MSIX: pci.MSIX{Vectors: 3, BAR: 1, PBAOff: 2048}})
	testkit.OK(t, err)
	dev := &plain{config, make(chan struct{}, 1), make(chan struct{}, 1)}
	files := dma.NewFiles()
	space := dma.NewSpace("plain", files)
	var log bytes.Buffer
	stop, stopServer := context.WithCancelCause(ctx)
	served := make(chan error, 1)
	go func() {
		sock, err := l.AcceptUnix()
		if err == nil {
			err = vfiouser.NewServer(dev, space, slog.New(slog.NewTextHandler(&log, nil))).Serve(stop, sock)
		}
		served <- err
	}()
	defer stopServer(nil)

	device,
		err := json.Marshal(map[string]any{"driver": "vfio-user-pci", "socket": map[string]string{"type": "unix",
		"path": path}})
	testkit.OK(t, err)
	args := append(b.Args[1:len(b.Args):len(b.Args)], "-nodefaults", "-display", "none", "-accel", "tcg", "-m", "64M",
		"-M", "q35,memory-backend=ram", "-object", "memory-backend-memfd,id=ram,size=64M,share=on", "-qmp", "stdio",
		"-device", string(device))
	cmd := exec.CommandContext(ctx, b.Args[0], args...)
	cmd.Env = append(os.Environ(), b.Env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in := testkit.Must(cmd.StdinPipe())(t)
	out, err := cmd.StdoutPipe()
	testkit.OK(t, err)
	testkit.OK(t, cmd.Start())
	lines := bufio.NewScanner(out)
	do := func(command string) {
		t.Helper()
		if _, err := fmt.Fprintf(in, "{\"execute\":%q}\n", command); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() {
			if strings.Contains(lines.Text(), `"return"`) {
				return
			}
		}
		t.Fatalf("QEMU has not answered %s: %v\n%s", command, ctx.Err(), &stderr)
	}
	await := func(what string, c <-chan struct{}) {
		t.Helper()
		select {
		case <-c:
		case <-ctx.Done():
			t.Fatalf("no %s: %v\n%s", what, ctx.Err(), &stderr)
		}
	}
	do("qmp_capabilities")
	await("addresses by the firmware", dev.enabled)

	do("stop") // the running firmware would change the memory map
	var ram uint64
	for _, r := range space.Regions() {
		if !r.NoAccess {
			ram += r.Size
		}
	}
	if ram < 63<<20 || files.Len() != 1 {
		t.Errorf("%d bytes of %d files are shared: %+v", ram, files.Len(), space.Regions())
	}
	do("cont")
	for range 2 {
		for len(dev.resets) > 0 {
			<-dev.resets
		}
		do("system_reset")
		await("reset", dev.resets)
	}

	do("stop") // a running QEMU may try to notify the server that has gone, and fail
	gone := errors.New("stopped by the test")
	stopServer(gone)
	testkit.ErrorIs(t, <-served, gone, "Serve")
	if s := log.String(); !strings.Contains(s, "the guest has lost a device") || strings.Contains(s, "refused") {
		t.Errorf("log: %s", s)
	}
	if s := space.Regions(); len(s) > 0 {
		t.Errorf("still mapped: %+v", s)
	}
	do("quit")
	for lines.Scan() { // until QEMU closes its output
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("QEMU: %v\n%s", err, &stderr)
	}
	if s := stderr.String(); strings.Contains(s, "warning") || strings.Contains(s, "timed out") {
		t.Errorf("QEMU says:\n%s", s)
	}
}
