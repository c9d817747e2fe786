// Command gpudriver-test judges vnicgpu.ko in a guest of which it is the only user: what it refuses, whose memory is
// whose, and that removal waits for devices and for nobody else. It prints a line for each case.
//
//	gpudriver-test                 memory, mappings and dma-bufs
//	gpudriver-test memory          what needs no NIC with device memory TCP
//	gpudriver-test private         a program's pages in the GPU
//	gpudriver-test private-long    the same of 64 MiB, 20 times
//	gpudriver-test paging          pages that a NIC has on demand, with a test on the host (package testnic)
//	gpudriver-test leave SIZE      leaves memory in the GPU, and says where each page of it is
//	gpudriver-test log             the kernel's log
//	gpudriver-test bind            whether the kernel binds memory of the GPU to a queue of the NIC: "bound", or its
//	                               error
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/devmem/kernel"
	"vnic.dev/vnic/internal/gpudriver"
)

const (
	page  = gpudriver.PageSize
	piece = 1 << 20
	nic   = "eth0"
	// patience is how long what must happen may take in a guest that is emulated.
	patience = 30 * time.Second
)

// testCase is one thing that is judged.
type testCase struct {
	name string
	run  func(gpudriver.GPU) error
}

var cases = []testCase{
	{"bad calls are refused", badCalls},
	{"memory is a file's own", checkOwn},
	{"memory is there as long as its last user", lives},
	{"a mapping and a dma-buf are the same memory", same},
	{"a device node of another file system is none's to keep", elsewhere},
	{"removal takes mappings away", unbindMapped},
	{"removal waits for a device that has a dma-buf mapped", unbindBound},
}

func main() {
	list := cases
	if len(os.Args) > 1 {
		switch err := error(nil); os.Args[1] {
		case "log":
			if err = printLog(); err == nil {
				return
			}
			fatal(err)
		case "hold":
			fatal(hold(os.Args[2], os.Args[3]))
		case "leave":
			if err = leave(os.Args[2]); err == nil {
				return
			}
			fatal(err)
		case "memory":
			list = cases[:len(cases)-1] // but unbindBound
		case "private":
			list = privateCases
		case "private-long":
			list, moveSize, moveTimes = privateCases, 64<<20, 20
		case "paging":
			list, mailboxSize = pagingCases, page
		case "region":
			if err = regionOf(os.Args[2]); err == nil {
				return
			}
			fatal(err)
		case "signals":
			if err = signalled(os.Args[2]); err == nil {
				return
			}
			fatal(err)
		case "bind":
			g, err := only()
			if err == nil {
				err = bound(g)
			}
			if err != nil {
				fatal(err)
			}
			fmt.Println("bound")
			return
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

// printLog prints what the kernel has said.
func printLog() error {
	b := make([]byte, 1<<20)
	n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, b)
	if err == nil {
		_, err = os.Stdout.Write(b[:n])
	}
	return err
}

// bound binds memory of a GPU to a queue of the NIC, and to its sending, and lets go of it.
func bound(g gpudriver.GPU) error {
	f, d, buf, err := registered(g)
	if err != nil {
		return err
	}
	defer f.Close()
	defer d.Close()
	defer buf.Close()
	rx, err := d.BindRX(buf, 1)
	if err != nil {
		return fmt.Errorf("receive: %w", err)
	}
	tx, err := d.BindTX(buf)
	if err != nil {
		return errors.Join(fmt.Errorf("send: %w", err), rx.Close())
	}
	return errors.Join(rx.Close(), tx.Close())
}

// registered gives memory of a GPU that the NIC can be bound to. The caller closes all three.
func registered(g gpudriver.GPU) (f *gpudriver.File, d *kernel.Device, buf devmem.Buffer, err error) {
	if f, err = gpudriver.Open(g.Path); err != nil {
		return nil, nil, nil, err
	}
	off, err := f.Alloc(4*piece, 0)
	if err == nil {
		d, err = kernel.Open(kernel.Options{Interface: nic, Buffers: exporter{f}, Alone: true})
	}
	if err != nil {
		return nil, nil, nil, errors.Join(err, f.Close())
	}
	if buf, err = d.Register(0, off, 4*piece); err != nil {
		return nil, nil, nil, errors.Join(err, d.Close(), f.Close())
	}
	return f, d, buf, nil
}

// mapped opens a GPU's device, and allocates and maps a piece. The caller closes the file and unmaps the memory.
func mapped(path string) (f *gpudriver.File, off uint64, mem []byte, err error) {
	if f, err = gpudriver.Open(path); err != nil {
		return nil, 0, nil, err
	}
	if off, err = f.Alloc(piece, 0); err == nil {
		mem, err = f.Mmap(off, piece)
	}
	if err != nil {
		return nil, 0, nil, errors.Join(err, f.Close())
	}
	return f, off, mem, nil
}

// mailboxSize is what the driver may keep of a GPU's memory for itself, once there was a region.
var mailboxSize uint64

// try runs a case. Of the GPU all memory is free before and after.
func (c *testCase) try() error {
	g, err := only()
	if err != nil {
		return err
	}
	if err := c.run(g); err != nil {
		return err
	}
	if g, err = only(); err != nil { // after a removal it may have another name
		return err
	}
	info, err := ask(g)
	if err == nil && (info.Free != info.Size && info.Free != info.Size-mailboxSize || info.Mapped != 0 ||
		info.Private != 0) {
		err = fmt.Errorf("left behind: %+v", info)
	}
	return err
}

func only() (g gpudriver.GPU, err error) {
	list, err := gpudriver.List()
	if err == nil && len(list) != 1 {
		err = fmt.Errorf("%d GPUs", len(list))
	}
	if err != nil {
		return g, err
	}
	return list[0], nil
}

// ask opens a device to ask for what is known of it.
func ask(g gpudriver.GPU) (gpudriver.Info, error) {
	f, err := gpudriver.Open(g.Path)
	if err != nil {
		return gpudriver.Info{}, err
	}
	defer f.Close()
	return f.Info()
}

// wait waits for what a program cannot be told of.
func wait(what string, done func() (bool, error)) error {
	for start := time.Now(); ; runtime.Gosched() {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if time.Since(start) > patience {
			return fmt.Errorf("not after %v: %s", patience, what)
		}
	}
}

func badCalls(g gpudriver.GPU) error {
	f, err := gpudriver.Open(g.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	off, err := f.Alloc(piece, 0)
	if err != nil {
		return err
	}
	alloc := func(size, align uint64) error { _, err := f.Alloc(size, align); return err }
	export := func(off, size uint64) error { _, err := f.Export(off, size); return err }
	mmap := func(off, size uint64) error { _, err := f.Mmap(off, size); return err }
	var errs []error
	for _, c := range []struct {
		what string
		got  error
		want error
	}{
		{"no bytes", alloc(0, 0), unix.EINVAL},
		{"no whole pages", alloc(page-1, 0), unix.EINVAL},
		{"more than there is", alloc(g.Size+page, 0), unix.ENOMEM},
		{"as much as can be said", alloc(1<<64-page, 0), unix.ENOMEM},
		{"what is taken already", alloc(g.Size, 0), unix.ENOMEM},
		{"an alignment that is no power of two", alloc(page, 3*page), unix.EINVAL},
		{"an alignment of less than a page", alloc(page, 512), unix.EINVAL},
		{"an alignment of 2 TiB", alloc(page, 1<<41), unix.EINVAL},

		{"a dma-buf of nothing", export(off, 0), unix.EINVAL},
		{"a dma-buf of no whole pages", export(off+1, page), unix.EINVAL},
		{"a dma-buf that is a page too long", export(off, piece+page), unix.EACCES},
		{"a dma-buf of others' memory", export(off+piece, page), unix.EACCES},
		{"a dma-buf around the end", export(off, 1<<64-page), unix.EACCES},
		{"a dma-buf from far away", export(1<<64-page, page), unix.EACCES},

		{"a mapping that is a page too long", mmap(off, piece+page), unix.EACCES},
		{"a mapping of others' memory", mmap(off+piece, page), unix.EACCES},
		{"a mapping of what is not there", mmap(g.Size, page), unix.EACCES},
		{"a private mapping", f.MmapPrivate(off, page), unix.EINVAL},

		{"a call that is none", f.Raw(0xc018e97f, make([]byte, 24)), unix.ENOTTY},
		{"a call that is too long", f.Raw(0xffffe901, make([]byte, 1<<14)), unix.ENOTTY},
		{"a flag that is none", f.Raw(0xc018e902, append(make([]byte, 8), 0, 16, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0)),
			unix.EINVAL},
		{"no memory", f.Raw(0xc018e901, nil), unix.EFAULT},
	} {
		if !errors.Is(c.got, c.want) {
			errs = append(errs, fmt.Errorf("%s: %v, and not %v", c.what, c.got, c.want))
		}
	}
	return errors.Join(errs...)
}

// own: what another file has allocated is not ours, and its bytes are gone when it is.
func checkOwn(g gpudriver.GPU) error {
	a, err := gpudriver.Open(g.Path)
	if err != nil {
		return err
	}
	defer a.Close()
	off, err := a.Alloc(g.Size, 0)
	if err != nil {
		return err
	}
	b, err := gpudriver.Open(g.Path)
	if err != nil {
		return err
	}
	defer b.Close()
	if _, err := b.Alloc(page, 0); !errors.Is(err, unix.ENOMEM) {
		return fmt.Errorf("memory that another has: %v", err)
	}
	if _, err := b.Export(off, page); !errors.Is(err, unix.EACCES) {
		return fmt.Errorf("a dma-buf of memory that another has: %v", err)
	}
	mem, err := a.Mmap(off, piece)
	if err != nil {
		return err
	}
	for i := range mem {
		mem[i] = 0xa5
	}
	if err := errors.Join(unix.Munmap(mem), a.Close()); err != nil {
		return err
	}
	if off, err = b.Alloc(g.Size, 0); err != nil {
		return err
	}
	if mem, err = b.Mmap(off, piece); err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(mem) }()
	if n := bytes.Count(mem, []byte{0}); n != len(mem) {
		return fmt.Errorf("%d bytes of new memory are not 0", len(mem)-n)
	}
	return nil
}

// lives: a mapping and a dma-buf keep what their file had.
func lives(g gpudriver.GPU) error {
	f, err := gpudriver.Open(g.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	off, err := f.Alloc(piece, piece)
	if err != nil {
		return err
	}
	if off%piece != 0 {
		return fmt.Errorf("%#x is not aligned", off)
	}
	mem, err := f.Mmap(off, piece)
	if err != nil {
		return err
	}
	buf, err := f.Export(off, piece)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	used := func(want uint64) error {
		info, err := ask(g)
		if err == nil && info.Size-info.Free != want {
			err = fmt.Errorf("%d bytes are used, and not %d", info.Size-info.Free, want)
		}
		return err
	}
	mem[0] = 1
	err = errors.Join(used(piece), unix.Munmap(mem), used(piece), unix.Close(buf))
	return errors.Join(err, wait("the memory is free", func() (bool, error) { return used(0) == nil, nil }))
}

func same(g gpudriver.GPU) error {
	f, off, mem, err := mapped(g.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	defer func() { _ = unix.Munmap(mem) }()
	buf, err := f.Export(off+page, piece-2*page)
	if err != nil {
		return err
	}
	defer unix.Close(buf)
	if size, err := unix.Seek(buf, 0, unix.SEEK_END); err != nil || size != piece-2*page {
		return fmt.Errorf("a dma-buf of %d bytes: %v", size, err)
	}
	by, err := unix.Mmap(buf, page, piece-3*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mmap of the dma-buf: %w", err)
	}
	defer func() { _ = unix.Munmap(by) }()
	for i := range by {
		by[i] = byte(i*7 + 1)
	}
	if !bytes.Equal(mem[2*page:piece-page], by) || mem[2*page-1] != 0 || mem[piece-page] != 0 {
		return errors.New("the bytes are others")
	}
	if _, err := unix.Mmap(buf, 0, piece, unix.PROT_READ, unix.MAP_SHARED); !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("a mapping of more than the dma-buf: %v", err)
	}
	return nil
}

// elsewhere: a container has a /dev of its own, which goes away, and a GPU may have been open and mapped there.
func elsewhere(g gpudriver.GPU) error {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(dir) }()
	if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
		return err
	}
	mounted := true
	defer func() {
		if mounted {
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	}()
	var st unix.Stat_t
	if err := unix.Stat(g.Path, &st); err != nil {
		return err
	}
	node := filepath.Join(dir, "gpu")
	if err := unix.Mknod(node, unix.S_IFCHR|0o600, int(st.Rdev)); err != nil {
		return err
	}
	f, _, mem, err := mapped(node)
	if err != nil {
		return err
	}
	defer f.Close()
	// What is mapped by any node is taken away.
	mem[0] = 1
	if err := bind(g, "unbind"); err != nil {
		return err
	}
	if touch(mem) == nil {
		return errors.New("memory of a GPU that is gone can be touched by another node")
	}
	if err := errors.Join(unix.Munmap(mem), f.Close(), bind(g, "bind")); err != nil {
		return err
	}
	mounted = false
	return unix.Unmount(dir, 0) // EBUSY where something of it is in use; a kernel that finds an inode in use panics
}

// bind has the driver take a GPU, or let go of it.
func bind(g gpudriver.GPU, file string) error {
	return os.WriteFile(filepath.Join("/sys/bus/pci/drivers", gpudriver.Module, file), []byte(g.PCI), 0)
}

// unbindMapped: programs that have a GPU open or mapped do not hold its removal up, and are told.
func unbindMapped(g gpudriver.GPU) error {
	f, off, mem, err := mapped(g.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	defer func() { _ = unix.Munmap(mem) }()
	buf, err := f.Export(off, piece)
	if err != nil {
		return err
	}
	defer unix.Close(buf)
	mem[0] = 1
	if err := touch(mem); err != nil {
		return fmt.Errorf("before: %w", err)
	}
	if err := bind(g, "unbind"); err != nil {
		return err
	}
	if touch(mem) == nil {
		return errors.New("memory of a GPU that is gone can be touched")
	}
	if _, err := f.Info(); !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("a call to a GPU that is gone: %v", err)
	}
	return bind(g, "bind")
}

// touch reads memory; an error says that it is not there (SIGBUS).
func touch(mem []byte) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	runtime.KeepAlive(mem[0] + mem[len(mem)-1])
	return nil
}

// exporter has the kernel's devmem TCP take memory of a file.
type exporter struct{ file *gpudriver.File }

func (e exporter) Export(gpu int, off, size uint64) (int, func() error, error) {
	fd, err := e.file.Export(off, size)
	return fd, nil, err
}

// unbindBound: removal waits until the NIC has let go of the memory. Then nothing of it is left.
func unbindBound(g gpudriver.GPU) error {
	f, d, buf, err := registered(g)
	if err != nil {
		return err
	}
	defer f.Close()
	defer d.Close()
	b, err := d.BindRX(buf, 1)
	if err != nil {
		return err
	}
	info, err := f.Info()
	if err != nil || info.Mapped != 1 {
		return fmt.Errorf("bound: %+v, %v", info, err)
	}
	gone := make(chan error, 1)
	go func() { gone <- bind(g, "unbind") }()
	// The device is no more to be opened: the driver has begun to let go of it.
	err = wait("the device is gone", func() (bool, error) {
		_, err := os.Stat(g.Path)
		return errors.Is(err, os.ErrNotExist), nil
	})
	if err != nil {
		return err
	}
	select {
	case err := <-gone:
		return fmt.Errorf("the GPU is removed while the NIC has it: %v", err)
	default:
	}
	if err := errors.Join(b.Close(), <-gone); err != nil {
		return err
	}
	<-b.Done()
	return errors.Join(buf.Close(), d.Close(), f.Close(), bind(g, "bind"))
}
