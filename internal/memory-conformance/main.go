// Command memory-conformance runs the conformance suite of devmem.Memory in a guest of vnic boot, over
// package guest's Memory (Device.Engines).
//
// The suite checks GPU memory through the GPU's BAR, or through Engines if there is no BAR (the GPU is a NUMA
// node).
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/guest"
	"vnic.dev/vnic/internal/devmemtest"
)

func main() { guest.Main(run) }

func run(ctx context.Context, d *guest.Device) error {
	bar, err := mapBAR(d)
	if err != nil {
		return err
	}
	w, by := world{engines: d.Engines()}, "Engines"
	if bar != nil {
		by = "BAR"
	}
	for i := range w.buffers {
		m, err := d.Alloc(devmemtest.MemorySize)
		if err != nil {
			return err
		}
		w.buffers[i] = m.Buffer
		if bar != nil {
			w.contents[i] = devmemtest.Bytes(bar[m.Buffer.Offset():][:devmemtest.MemorySize])
		} else {
			w.contents[i] = m
		}
	}
	cases, failed := devmemtest.MemoryCases(), 0
	for _, c := range cases {
		if r := devmemtest.CheckMemory(ctx, c, w.fresh); r.Failed || r.Skipped {
			failed++
			fmt.Printf("%s: %s\n", c.Name, strings.Join(r.Log, "; "))
		}
	}
	fmt.Printf("%d of %d cases passed, contents by %s\n", len(cases)-failed, len(cases), by)
	return nil
}

// mapBAR maps BAR 2 of the first ivshmem-plain; nil: there is none.
func mapBAR(d *guest.Device) ([]byte, error) {
	dirs, err := filepath.Glob("/sys/bus/pci/devices/*")
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		vendor, verr := os.ReadFile(filepath.Join(dir, "vendor"))
		device, derr := os.ReadFile(filepath.Join(dir, "device"))
		if verr != nil || derr != nil || string(bytes.TrimSpace(vendor)) != "0x1af4" ||
			string(bytes.TrimSpace(device)) != "0x1110" {
			continue
		}
		f, err := os.OpenFile(filepath.Join(dir, "resource2"), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		b, err := unix.Mmap(int(f.Fd()), 0, int(d.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return nil, &os.PathError{Op: "mmap", Path: f.Name(), Err: err}
		}
		return b, nil
	}
	return nil, nil
}

// world has two buffers of GPU memory for all cases, and their contents for the suite's checks.
type world struct {
	engines  devmem.Memory
	buffers  [2]devmem.Buffer
	contents [2]devmemtest.Memory
}

// fresh returns a case's world, whose counters start at 0 and omit what the suite's checks put and get.
func (w *world) fresh(devmemtest.T) *devmemtest.MemoryWorld {
	m := &counted{Memory: w.engines}
	m.before = m.Memory.Stats()
	mw := &devmemtest.MemoryWorld{Memory: m, Buffers: w.buffers, Other: other{w.buffers[0]}}
	for i, c := range w.contents {
		mw.Contents[i] = contents{m, c}
	}
	return mw
}

// other claims to be on another GPU.
type other struct{ devmem.Buffer }

func (o other) GPU() int { return o.Buffer.GPU() + 1 }

// counted is a devmem.Memory whose Stats omit the counts in its field before.
type counted struct {
	devmem.Memory
	before devmem.MemoryStats
}

// Stats implements devmem.Memory.
func (c *counted) Stats() devmem.MemoryStats {
	s, b := c.Memory.Stats(), c.before
	return devmem.MemoryStats{Looked: s.Looked - b.Looked, Put: s.Put - b.Put, Got: s.Got - b.Got,
		Gathered: s.Gathered - b.Gathered, Reduced: s.Reduced - b.Reduced}
}

// contents is memory for the suite's checks, whose reads and writes are not in the Stats of c.
type contents struct {
	c *counted
	devmemtest.Memory
}

// ReadAt implements io.ReaderAt.
func (x contents) ReadAt(p []byte, off int64) (int, error) {
	return x.c.uncounted(x.Memory.ReadAt, p, off)
}

// WriteAt implements io.WriterAt.
func (x contents) WriteAt(p []byte, off int64) (int, error) {
	return x.c.uncounted(x.Memory.WriteAt, p, off)
}

// uncounted calls f and adds to c.before what f puts and gets, so that Stats omit it. Meanwhile nothing else uses the
// Memory. If f transfers less than p without an error, the error is EIO.
func (c *counted) uncounted(f func([]byte, int64) (int, error), p []byte, off int64) (int, error) {
	was := c.Memory.Stats()
	n, err := f(p, off)
	now := c.Memory.Stats()
	c.before.Put += now.Put - was.Put
	c.before.Got += now.Got - was.Got
	if err == nil && n < len(p) {
		err = syscall.EIO
	}
	return n, err
}
