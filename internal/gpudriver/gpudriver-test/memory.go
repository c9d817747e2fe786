package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/devmem/kernel"
	"vnic.dev/vnic/internal/gpudriver"
)

var memoryCases = []testCase{
	{"bad calls are refused", badCalls},
	{"memory is a file's own", checkOwn},
	{"memory is there as long as its last user", lives},
	{"a mapping and a dma-buf are the same memory", same},
	{"a device node of another file system is none's to keep", elsewhere},
	{"removal takes mappings away", unbindMapped},
	{"removal waits for a device that has a dma-buf mapped", unbindBound},
}

func bound(t *T) {
	t.gpu = only(t)
	f, d, buf := registered(t)
	defer f.Close()
	defer d.Close()
	defer buf.Close()
	rx, err := d.BindRX(buf, 1)
	if err != nil {
		t.ok(fmt.Errorf("receive: %w", err))
	}
	tx, err := d.BindTX(buf)
	if err != nil {
		t.ok(errors.Join(fmt.Errorf("send: %w", err), rx.Close()))
	}
	t.ok(errors.Join(rx.Close(), tx.Close()))
	fmt.Println("bound")
}

// The caller closes the three results.
func registered(t *T) (*gpudriver.File, *kernel.Device, devmem.Buffer) {
	f := open(t)
	off, err := f.Alloc(4*piece, 0)
	var d *kernel.Device
	if err == nil {
		d, err = kernel.Open(kernel.Options{Interface: nic, Buffers: exporter{f}, Alone: true})
	}
	if err != nil {
		t.ok(errors.Join(err, f.Close()))
	}
	buf, err := d.Register(0, off, 4*piece)
	if err != nil {
		t.ok(errors.Join(err, d.Close(), f.Close()))
	}
	return f, d, buf
}

// The caller closes f and unmaps mem.
func mapped(t *T, path string) (f *gpudriver.File, off uint64, mem []byte) {
	f = must(gpudriver.Open(path))(t)
	off, err := f.Alloc(piece, 0)
	if err == nil {
		mem, err = f.Mmap(off, piece)
	}
	if err != nil {
		t.ok(errors.Join(err, f.Close()))
	}
	return f, off, mem
}

func badCalls(t *T) {
	f := open(t)
	defer f.Close()
	off := must(f.Alloc(piece, 0))(t)
	alloc := func(size, align uint64) error { return errOf(f.Alloc(size, align)) }
	export := func(off, size uint64) error { return errOf(f.Export(off, size)) }
	mmap := func(off, size uint64) error { return errOf(f.Mmap(off, size)) }

	t.refused("no bytes", alloc(0, 0), unix.EINVAL)
	t.refused("no whole pages", alloc(page-1, 0), unix.EINVAL)
	t.refused("more than there is", alloc(t.gpu.Size+page, 0), unix.ENOMEM)
	t.refused("as much as can be said", alloc(1<<64-page, 0), unix.ENOMEM)
	t.refused("what is taken already", alloc(t.gpu.Size, 0), unix.ENOMEM)
	t.refused("an alignment that is no power of two", alloc(page, 3*page), unix.EINVAL)
	t.refused("an alignment of less than a page", alloc(page, 512), unix.EINVAL)
	t.refused("an alignment of 2 TiB", alloc(page, 1<<41), unix.EINVAL)

	t.refused("a dma-buf of nothing", export(off, 0), unix.EINVAL)
	t.refused("a dma-buf of no whole pages", export(off+1, page), unix.EINVAL)
	t.refused("a dma-buf that is a page too long", export(off, piece+page), unix.EACCES)
	t.refused("a dma-buf of others' memory", export(off+piece, page), unix.EACCES)
	t.refused("a dma-buf around the end", export(off, 1<<64-page), unix.EACCES)
	t.refused("a dma-buf from far away", export(1<<64-page, page), unix.EACCES)

	t.refused("a mapping that is a page too long", mmap(off, piece+page), unix.EACCES)
	t.refused("a mapping of others' memory", mmap(off+piece, page), unix.EACCES)
	t.refused("a mapping of what is not there", mmap(t.gpu.Size, page), unix.EACCES)
	t.refused("a private mapping", f.MmapPrivate(off, page), unix.EINVAL)

	t.refused("a call that is none", f.Raw(0xc018e97f, make([]byte, 24)), unix.ENOTTY)
	t.refused("a call that is too long", f.Raw(0xffffe901, make([]byte, 1<<14)), unix.ENOTTY)
	t.refused("a flag that is none",
		f.Raw(0xc018e902, append(make([]byte, 8), 0, 16, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0)), unix.EINVAL)
	t.refused("no memory", f.Raw(0xc018e901, nil), unix.EFAULT)
}

func checkOwn(t *T) {
	a := open(t)
	defer a.Close()
	off := must(a.Alloc(t.gpu.Size, 0))(t)
	b := open(t)
	defer b.Close()
	t.refused("memory that another has", errOf(b.Alloc(page, 0)), unix.ENOMEM)
	t.refused("a dma-buf of memory that another has", errOf(b.Export(off, page)), unix.EACCES)
	mem := must(a.Mmap(off, piece))(t)
	for i := range mem {
		mem[i] = 0xa5
	}
	t.ok(errors.Join(unix.Munmap(mem), a.Close()))
	off = must(b.Alloc(t.gpu.Size, 0))(t)
	mem = must(b.Mmap(off, piece))(t)
	defer t.unmap(mem)
	n := bytes.Count(mem, []byte{0})
	t.require(n == len(mem), "%d bytes of new memory are not 0", len(mem)-n)
}

func lives(t *T) {
	f := open(t)
	defer f.Close()
	off := must(f.Alloc(piece, piece))(t)
	t.require(off%piece == 0, "%#x is not aligned", off)
	mem := must(f.Mmap(off, piece))(t)
	buf, err := f.Export(off, piece)
	t.ok(errors.Join(err, f.Close()))
	used := func(want uint64) {
		info := ask(t)
		t.require(info.Size-info.Free == want, "%d bytes are used, and not %d", info.Size-info.Free, want)
	}
	mem[0] = 1
	used(piece)
	t.unmap(mem)
	used(piece)
	t.ok(unix.Close(buf))
	t.ok(wait("the memory is free", func() bool { info := ask(t); return info.Free == info.Size }))
}

func same(t *T) {
	f, off, mem := mapped(t, t.gpu.Path)
	defer f.Close()
	defer t.unmap(mem)
	buf := must(f.Export(off+page, piece-2*page))(t)
	defer unix.Close(buf)
	size, err := unix.Seek(buf, 0, unix.SEEK_END)
	t.require(err == nil && size == piece-2*page, "a dma-buf of %d bytes: %v", size, err)
	by, err := unix.Mmap(buf, page, piece-3*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	t.require(err == nil, "mmap of the dma-buf: %w", err)
	defer t.unmap(by)
	for i := range by {
		by[i] = byte(i*7 + 1)
	}
	t.require(bytes.Equal(mem[2*page:piece-page], by) && mem[2*page-1] == 0 && mem[piece-page] == 0,
		"the bytes are others")
	t.refused("a mapping of more than the dma-buf", errOf(unix.Mmap(buf, 0, piece, unix.PROT_READ, unix.MAP_SHARED)),
		unix.EINVAL)
}

// elsewhere: a program opens and maps a GPU by a device node in another file system, as in a container. After
// munmap, close and the GPU's removal that file system can be unmounted.
func elsewhere(t *T) {
	dir := must(os.MkdirTemp("", ""))(t)
	defer func() { _ = os.Remove(dir) }()
	t.ok(unix.Mount("none", dir, "tmpfs", 0, ""))
	mounted := true
	defer func() {
		if mounted {
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	}()
	var st unix.Stat_t
	t.ok(unix.Stat(t.gpu.Path, &st))
	node := filepath.Join(dir, "gpu")
	t.ok(unix.Mknod(node, unix.S_IFCHR|0o600, int(st.Rdev)))
	f, _, mem := mapped(t, node)
	defer f.Close()
	mem[0] = 1
	t.ok(bind(t.gpu, "unbind"))
	t.require(touch(mem) != nil, "memory of a GPU that is gone can be touched by another node")
	t.ok(errors.Join(unix.Munmap(mem), f.Close(), bind(t.gpu, "bind")))
	mounted = false
	t.ok(unix.Unmount(dir, 0)) // EBUSY if the mount is in use; the kernel may panic at an inode that is still in use
}

func bind(g gpudriver.GPU, file string) error {
	return os.WriteFile(filepath.Join("/sys/bus/pci/drivers", gpudriver.Module, file), []byte(g.PCI), 0)
}

// unbindMapped: a GPU that is open or mapped can be removed; then programs get errors.
func unbindMapped(t *T) {
	f, off, mem := mapped(t, t.gpu.Path)
	defer f.Close()
	defer t.unmap(mem)
	buf := must(f.Export(off, piece))(t)
	defer unix.Close(buf)
	mem[0] = 1
	err := touch(mem)
	t.require(err == nil, "before: %w", err)
	t.ok(bind(t.gpu, "unbind"))
	t.require(touch(mem) != nil, "memory of a GPU that is gone can be touched")
	t.refused("a call to a GPU that is gone", errOf(f.Info()), unix.ENODEV)
	t.ok(bind(t.gpu, "bind"))
}

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

type exporter struct{ file *gpudriver.File }

func (e exporter) Export(gpu int, off, size uint64) (int, func() error, error) {
	fd, err := e.file.Export(off, size)
	return fd, nil, err
}

// unbindBound: removal waits until the NIC has released the memory.
func unbindBound(t *T) {
	f, d, buf := registered(t)
	defer f.Close()
	defer d.Close()
	b := must(d.BindRX(buf, 1))(t)
	info, err := f.Info()
	t.require(err == nil && info.Mapped == 1, "bound: %+v, %v", info, err)
	gone := make(chan error, 1)
	go func() { gone <- bind(t.gpu, "unbind") }()
	t.ok(wait("the device is gone", func() bool {
		_, err := os.Stat(t.gpu.Path)
		return errors.Is(err, os.ErrNotExist)
	}))
	select {
	case err := <-gone:
		t.ok(fmt.Errorf("the GPU is removed while the NIC has it: %v", err))
	default:
	}
	t.ok(errors.Join(b.Close(), <-gone))
	<-b.Done()
	t.ok(errors.Join(buf.Close(), d.Close(), f.Close(), bind(t.gpu, "bind")))
}
